"""A RAG service for a corpus as the workload reads it, so that both hold the same texts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from loadgen.cli.notice import say
from loadgen.targets.library_folder import CorpusTexts
from loadgen.targets.rag_service import RunningRagService, require_rag_service, start_rag_service
from loadgen.workload.corpus import load_corpus, load_documents
from loadgen.workload.jsonl import read_text


@asynccontextmanager
async def rag_service(
    corpus: Path | None, logs: Path, start_timeout_s: float
) -> AsyncIterator[RunningRagService]:
    """Serve the documents at `corpus`, or the demo corpus; inside, the service answers.

    The questions in the file of expansions beside the corpus, if there is one, are indexed too,
    and the service embeds with the adapter beside it.

    Raises CorpusError, UsageError where it is not installed, and TargetError.
    """
    documents = load_documents(corpus)
    require_rag_service()
    say(f"starting the RAG service with {len(documents)} documents …")
    lines = "".join(f"{json.dumps(asdict(document))}\n" for document in documents)
    source = corpus or load_corpus().source
    texts = CorpusTexts(_name(corpus), lines, _expansions(source), _adapter(source))
    async with start_rag_service(texts, logs, start_timeout_s) as service:
        yield service


def _expansions(source: Path) -> str:
    """The content of the file, which the service reads and checks; empty where there is none."""
    path = _beside(source, "expansions.jsonl")
    return read_text(path) if path.exists() else ""


def _adapter(source: Path) -> Path | None:
    path = _beside(source, "adapter.safetensors").resolve()
    return path if path.is_file() else None


def _beside(source: Path, name: str) -> Path:
    """Where the service looks for a file that belongs to a corpus."""
    return source / name if source.is_dir() else source.with_suffix(f".{name}")


def _name(corpus: Path | None) -> str:
    """By this its library is found again."""
    return "demo" if corpus is None else str(corpus.resolve())
