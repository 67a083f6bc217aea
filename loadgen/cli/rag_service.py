"""A RAG service for a corpus as the workload reads it, so that both hold the same texts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from loadgen.cli.notice import say
from loadgen.targets.rag_service import RunningRagService, require_rag_service, start_rag_service
from loadgen.workload.corpus import load_documents


@asynccontextmanager
async def rag_service(
    corpus: Path | None, logs: Path, start_timeout_s: float
) -> AsyncIterator[RunningRagService]:
    """Serve the documents at `corpus`, or the demo corpus; inside, the service answers.

    Raises CorpusError, UsageError where it is not installed, and TargetError.
    """
    documents = load_documents(corpus)
    require_rag_service()
    say(f"starting the RAG service with {len(documents)} documents …")
    lines = "".join(f"{json.dumps(asdict(document))}\n" for document in documents)
    async with start_rag_service(_name(corpus), lines, logs, start_timeout_s) as service:
        yield service


def _name(corpus: Path | None) -> str:
    """By this its library is found again."""
    return "demo" if corpus is None else str(corpus.resolve())
