"""Top-1 by `kvswarm rag eval`: with other embedders, and among more and more documents."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_corpus import DATA, DEMO, made_documents, write_documents
from rag_rows import EmbedderRow, SizeRow
from scheduler_engine_run import say

from loadgen.launch.target_run import demo_model, model_named

CORPORA = ("mixed", "manual")
SIZED, OTHERS = "mixed", (DATA / "manual.jsonl", DEMO)
LIMIT_S = 1200.0


@dataclass(frozen=True, slots=True)
class Embedder:
    """Its name in the table, and the options that mean it."""

    name: str
    options: tuple[str, ...]


def embedders(*causal_models: str) -> list[Embedder]:
    """The default, each causal model ("": the demo model, `trained`), and no model at all."""
    return [
        Embedder("minilm", ("--embedder", "minilm")),
        *map(_causal, causal_models),
        Embedder("hashing: no model", ("--embedder", "hashing")),
    ]


def _causal(model: str) -> Embedder:
    folder = str(model_named(model) or demo_model("tiny"))
    name = f"hf-causal-mean: {model or 'the demo model, random weights'}"
    return Embedder(name, ("--embedder", "hf-causal-mean", "--embedder-model", folder))


async def embedder_rows(causal_models: Sequence[str], out: Path) -> list[EmbedderRow]:
    """A row for each corpus and embedder. Raises RuntimeError where an evaluation fails."""
    rows = []
    for corpus in CORPORA:
        for embedder in embedders(*causal_models):
            say(f"{corpus} with {embedder.name}")
            found = await asyncio.to_thread(_evaluate, corpus, out, embedder.options)
            rows.append(_embedder_row(corpus, embedder.name, found))
    return rows


async def size_rows(chunks: int, out: Path) -> list[SizeRow]:
    """Rows with more and more documents of other subjects, up to so many chunks.

    Raises RuntimeError where the evaluation fails.
    """
    distractors = out / "distractors.jsonl"
    with distractors.open("w", encoding="utf-8") as file:
        write_documents(made_documents(chunks, OTHERS), file)
    say(f"{SIZED} among distractors of {chunks} chunks")
    options = ("--distractors", str(distractors))
    found = await asyncio.to_thread(_evaluate, SIZED, out, options)
    return [_size_row(found["questions"], each) for each in found["sizes"]]


def development_questions(corpus: str, out: Path) -> Path:
    """A file of the questions whose number is odd."""
    lines = (DATA / f"{corpus}-questions.jsonl").read_text(encoding="utf-8").splitlines()
    odd = [line for line in lines if int(json.loads(line)["qid"].rpartition("-")[2]) % 2]
    path = out / f"{corpus}-development.jsonl"
    path.write_text("\n".join(odd), encoding="utf-8")
    return path


def _evaluate(corpus: str, out: Path, options: tuple[str, ...]) -> dict[str, Any]:
    questions = development_questions(corpus, out)
    files = ("--corpus", str(DATA / f"{corpus}.jsonl"), "--questions", str(questions))
    command = (sys.executable, "-m", "rag_store", "eval", *files, *options, "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"kvswarm rag eval {' '.join(options)} failed: {done.stderr}")
    return dict(json.loads(done.stdout))


def _embedder_row(corpus: str, name: str, found: dict[str, Any]) -> EmbedderRow:
    baselines = found["baselines"]
    low, high = baselines["dense"]["top1_interval"]
    return EmbedderRow(
        corpus=corpus,
        embedder=name,
        questions=found["questions"],
        dense=baselines["dense"]["top1"],
        dense_low=low,
        dense_high=high,
        whole_document=baselines["whole_document"]["top1"],
        bm25=baselines["bm25"]["top1"],
        hybrid=found["top1"],
        embed_p50_ms=found["stages_ms"]["embed_ms"]["p50"],
    )


def _size_row(questions: int, size: dict[str, Any]) -> SizeRow:
    return SizeRow(
        documents=size["documents"],
        chunks=size["chunks"],
        questions=questions,
        top1=size["top1"],
        recall=size["hnsw_recall"],
        exact_p50_ms=size["exact_ms"]["p50"],
        exact_p99_ms=size["exact_ms"]["p99"],
        hnsw_p50_ms=size["hnsw_ms"]["p50"],
        hnsw_p99_ms=size["hnsw_ms"]["p99"],
    )
