"""The service that a swarm of ours asks for labels."""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.launch.target_run import TargetRun
from loadgen.launch.terminal import awaited, say
from loadgen.targets.hardware import detect_platform, free_ports
from loadgen.targets.plan import ServicePlan
from loadgen.targets.rag_service import (
    CorpusTexts,
    require_rag_service,
    running_service,
    start_rag_service,
)
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.settings import LOOPBACK
from loadgen.workload.corpus import library_lines, load_corpus
from rag_store.extras import install_command

MODULES = ("aiohttp", "numpy", "torch", "transformers")
ASKED = "questions*.jsonl"


@dataclass(frozen=True, slots=True)
class ServiceLabels:
    """What a swarm asks a service of ours for: labels by rag or kv, of these documents, None for
    the demo corpus. `questions` are those of `--questions`, of labels kv only."""

    corpus: Path | None
    kind: str = "rag"
    questions: Path | None = None


def label_service(
    labels: ServiceLabels, target_run: TargetRun, logs: Path
) -> AbstractAsyncContextManager[ServiceGroup]:
    """The service, ready; of labels kv it has the target's model. Raises as `rag_service`."""
    start_timeout_s = target_run.run.target_arguments.start_timeout_s
    if labels.kind == "rag":
        return rag_service(labels.corpus, logs, start_timeout_s)
    return _kv_service(labels, target_run, logs, start_timeout_s)


def earlier_questions(corpus: Path | None, questions: Path | None) -> Path:
    """The corpus's own questions, so that `--questions` may ask others; those where it has none.
    Raises CorpusError."""
    source = load_corpus(corpus, questions).source
    folder = source if source.is_dir() else source.parent
    return questions if questions is not None and not any(folder.glob(ASKED)) else folder


@asynccontextmanager
async def _kv_service(
    labels: ServiceLabels, target_run: TargetRun, logs: Path, start_timeout_s: float
) -> AsyncIterator[ServiceGroup]:
    model = target_run.settings.model_dir
    if model is None:
        raise UsageError(
            f"--labels kv computes with the model's files, and {target_run.settings.model} is no"
            " folder: give one as --model"
        )
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise UsageError(f"--labels kv needs {', '.join(missing)}: {install_command('kv')}")
    questions = earlier_questions(labels.corpus, labels.questions)
    say(f"starting the KV service with the questions of {questions} …")
    (port,) = free_ports(1)
    plan = _plan(model, target_run.settings.name, questions, port)
    starting = running_service(plan, logs, start_timeout_s)
    async with awaited(starting, "the KV service", logs) as service:
        yield service


def _plan(model: Path, name: str, questions: Path, port: int) -> ServicePlan:
    url = f"http://{LOOPBACK}:{port}"
    return ServicePlan(
        name="kv",
        argv=(
            *(sys.executable, "-m", "loadgen.cli.main", "kv", "serve"),
            *("--model", str(model), "--name", name, "--questions", str(questions)),
            *("--bind", LOOPBACK, "--port", str(port)),
        ),
        # As the catalog has it for engines: more threads would only wait for each other.
        env={"OMP_NUM_THREADS": "1"} if detect_platform() == "cpu" else {},
        url=url,
        ready_url=f"{url}/ready",
        metrics_url=f"{url}/metrics",
    )


@asynccontextmanager
async def rag_service(
    corpus: Path | None, logs: Path, start_timeout_s: float
) -> AsyncIterator[ServiceGroup]:
    """Serve the documents at `corpus`, or the demo corpus; inside, the service answers.

    Raises CorpusError, UsageError where it is not installed, and TargetError.
    """
    lines = library_lines(corpus)
    require_rag_service()
    count = lines.count("\n")
    say(f"starting the RAG service with {count} documents …")
    texts = CorpusTexts(_name(corpus), lines)
    starting = start_rag_service(texts, logs, start_timeout_s)
    async with awaited(starting, "the RAG service", logs) as service:
        yield service


def _name(corpus: Path | None) -> str:
    """By this its library is found again."""
    return "demo" if corpus is None else str(corpus.resolve())
