"""Musts and report of a run: Markdown made of its CSV files and of nothing else."""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_rows import EmbedderRow, LabelRow, NeighbourRow, SizeRow, SwarmRow
from run_folder import machine_of
from scheduler_markdown import section, table
from scheduler_musts import Must
from scheduler_report import musts_table
from scheduler_rows import read_rows

from loadgen.runs.machine import versions

BEGIN, END = "<!-- bench-rag:begin -->", "<!-- bench-rag:end -->"
PACKAGES = ("kvswarm", "chromadb", "bm25s", "numpy", "torch")
MUST_CHUNKS, MUST_P99_MS = 10_000, 10.0
WAYS = ("in process", "HTTP")
EMBEDDINGS = ("computed", "kept")
REST, ANSWER = "without embedding p50 / p95 / p99 ms", "answered p50 / p95 / p99 ms"
LAG = "loop lag p50 / p95 / p99 ms"
TIMES_NOTE = """\
One library each; a client sends its next question when it has the answer. "Without embedding" is
a label's queue, search and fuse by the library's own clock, "answered" what the client waited for
all of it. Embeddings are computed where a question is new, or kept from when it was asked before.
With several clients new questions wait for each other's forward pass, which counts as queue. The
documents are made of the sentences of real ones (`tests/bench/rag_corpus.py`), and their
embeddings of those of the sentences (`tests/bench/rag_made_embedder.py`)."""
NEIGHBOURS_NOTE = """\
The same libraries asked for the nearest chunks alone: recall is that of the 10 nearest by Chroma's
HNSW index, which is asked for 400."""
LOAD_NOTE = """\
The service over HTTP with {chunks:,} chunks, alone, and while a swarm of eight users keeps a real
vLLM with the demo model busy on the same cores. Loop lag is the service's own
`kvswarm_rag_loop_lag_seconds` of that time; its percentiles are interpolated in buckets."""
SIZES_NOTE = """\
Development questions about the 40 documents in `tests/rag/data/mixed.jsonl`, by `kvswarm rag eval
--distractors`: the others are made of the sentences of the manual and of the demo corpus. Top-1 is
with the default settings; recall is that of the 10 nearest chunks by Chroma's HNSW index."""
EMBEDDERS_NOTE = """\
Top-1 of the development questions in `tests/rag/data` by `kvswarm rag eval`. Dense is by the
embedder's chunk vectors alone; hybrid has BM25 beside them, and with minilm and hashing word states
too."""


@dataclass(frozen=True, slots=True)
class Rows:
    """All that a run has measured."""

    labels: tuple[LabelRow, ...] = ()
    neighbours: tuple[NeighbourRow, ...] = ()
    swarm: tuple[SwarmRow, ...] = ()
    sizes: tuple[SizeRow, ...] = ()
    embedders: tuple[EmbedderRow, ...] = ()

    @classmethod
    def of(cls, directory: Path) -> "Rows":
        """What the CSV files of a run hold; a missing file has no rows."""
        kinds = (LabelRow, NeighbourRow, SwarmRow, SizeRow, EmbedderRow)
        return cls(*(tuple(read_rows(kind, directory)) for kind in kinds))


def machine_text() -> str:
    """Cores and versions, without anything that names the machine."""
    found = ", ".join(f"{name} {version}" for name, version in versions(PACKAGES).items())
    return f"{os.cpu_count()} cores ({platform.machine()}), no GPU, {found}."


def musts(rows: Rows) -> list[Must]:
    """Labels without embedding at 10,000 chunks with the default search, one after another."""
    return [_must(rows, way, embedding) for way in WAYS for embedding in EMBEDDINGS]


def _must(rows: Rows, way: str, embedding: str) -> Must:
    wanted = (MUST_CHUNKS, "exact", way, "idle", 1, embedding)
    found = [
        row.rest_p99_ms
        for row in rows.labels
        if (row.chunks, row.search, row.way, row.load, row.clients, row.embedding) == wanted
    ]
    measure = f"label without embedding, p99 ms, {MUST_CHUNKS:,} chunks, embeddings {embedding}"
    return Must(measure, MUST_P99_MS, found[0] if found else None, way)


def report(directory: Path) -> str:
    """The machine, the musts and all tables that have rows."""
    rows = Rows.of(directory)
    machine = machine_of(directory)
    idle = [row for row in rows.labels if row.load == "idle"]
    parts = [
        machine,
        musts_table(musts(rows)) if rows.labels else "",
        section("Labels by the number of chunks", TIMES_NOTE, _times_table(idle)),
        section("Exact search and HNSW", NEIGHBOURS_NOTE, _neighbours_table(rows.neighbours)),
        _load_section(rows),
        section("More documents", SIZES_NOTE, _sizes_table(rows.sizes)),
        section("A causal model as an embedder", EMBEDDERS_NOTE, _embedders_table(rows.embedders)),
    ]
    return "\n\n".join(part for part in parts if part)


def _times_table(rows: Iterable[LabelRow]) -> str:
    head = ("chunks", "search", "way", "clients", "embeddings", REST, ANSWER, "labels/s")
    return table(head, map(_times_cells, rows))


def _times_cells(row: LabelRow) -> tuple[str, ...]:
    case = f"{row.chunks:,}", row.search, row.way, str(row.clients), row.embedding
    return *case, _rest(row), _answer(row), f"{row.labels_per_s:.0f}"


def _neighbours_table(rows: Sequence[NeighbourRow]) -> str:
    head = ("chunks", "queries", "HNSW recall@10", "exact p50 / p99 ms", "HNSW p50 / p99 ms")
    return table(head, map(_neighbour_cells, rows))


def _neighbour_cells(row: NeighbourRow) -> tuple[str, ...]:
    return f"{row.chunks:,}", str(row.queries), f"{row.recall:.3f}", *_both_ways(row)


def _both_ways(row: NeighbourRow | SizeRow) -> tuple[str, str]:
    return (
        f"{row.exact_p50_ms:.2f} / {row.exact_p99_ms:.2f}",
        f"{row.hnsw_p50_ms:.2f} / {row.hnsw_p99_ms:.2f}",
    )


def _load_section(rows: Rows) -> str:
    loaded = [row for row in rows.labels if row.load != "idle"]
    if not loaded:
        return ""
    same = {(row.chunks, row.search, row.way, row.clients) for row in loaded}
    beside = [r for r in rows.labels if (r.chunks, r.search, r.way, r.clients) in same]
    head = ("load", "clients", "embeddings", REST, ANSWER, "embedding p50 ms", LAG)
    body = table(head, map(_load_cells, beside))
    return section(
        "Beside a busy vLLM",
        LOAD_NOTE.format(chunks=loaded[0].chunks),
        "\n\n".join([body, *map(_swarm_text, rows.swarm)]),
    )


def _load_cells(row: LabelRow) -> tuple[str, ...]:
    case = row.load, str(row.clients), row.embedding
    return *case, _rest(row), _answer(row), f"{row.embed_p50_ms:.0f}", _lag(row)


def _swarm_text(row: SwarmRow) -> str:
    return (
        f"The swarm meanwhile: {row.requests} requests, {row.failed} failed, TTFT"
        f" {row.ttft_p50_ms:.0f} / {row.ttft_p95_ms:.0f} / {row.ttft_p99_ms:.0f} ms."
    )


def _sizes_table(rows: Sequence[SizeRow]) -> str:
    head = ("documents", "chunks", "questions", "top-1", "HNSW recall@10")
    return table((*head, "exact p50 / p99 ms", "HNSW p50 / p99 ms"), map(_size_cells, rows))


def _size_cells(row: SizeRow) -> tuple[str, ...]:
    counts = f"{row.documents:,}", f"{row.chunks:,}", str(row.questions)
    shares = f"{row.top1:.3f}", f"{row.recall:.3f}"
    return *counts, *shares, *_both_ways(row)


def _embedders_table(rows: Sequence[EmbedderRow]) -> str:
    head = ("corpus", "embedder", "questions", "dense (95 % interval)", "vector per document")
    return table((*head, "BM25", "hybrid", "embedding p50 ms"), map(_embedder_cells, rows))


def _embedder_cells(row: EmbedderRow) -> tuple[str, ...]:
    dense = f"{row.dense:.3f} ({row.dense_low:.3f} to {row.dense_high:.3f})"
    others = (f"{value:.3f}" for value in (row.whole_document, row.bm25, row.hybrid))
    case = row.corpus, row.embedder, str(row.questions)
    return *case, dense, *others, f"{row.embed_p50_ms:.0f}"


def _rest(row: LabelRow) -> str:
    return f"{row.rest_p50_ms:.1f} / {row.rest_p95_ms:.1f} / {row.rest_p99_ms:.1f}"


def _answer(row: LabelRow) -> str:
    return f"{row.answer_p50_ms:.0f} / {row.answer_p95_ms:.0f} / {row.answer_p99_ms:.0f}"


def _lag(row: LabelRow) -> str:
    return f"{row.lag_p50_ms:.1f} / {row.lag_p95_ms:.1f} / {row.lag_p99_ms:.1f}"
