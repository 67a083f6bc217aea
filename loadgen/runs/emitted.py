"""The contexts a run really emitted, read back from its `requests.csv`."""

import csv
import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from loadgen.workload.diversity import measure_diversity

CHUNK = 4096
"""Rows that are sorted at once."""


def emitted_diversity(
    requests_csv: Path, since_s: float | None = None, warmup_s: float = 0.0
) -> dict[str, Any]:
    """Diversity of the contexts that were sent (from `since_s` on, and due after the warm-up), in
    the order of sending.

    Of a retrieved context that is the one that was found; a question without any is left out.
    """
    least_s = -math.inf if since_s is None else since_s
    sent = _Sent()
    with requests_csv.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        at = {name: place for place, name in enumerate(next(rows))}
        sent_s, context = at["sent_s"], _context_of(at)
        for row in rows:
            if not row[sent_s] or (warmup_s and float(row[at["scheduled_s"]]) < warmup_s):
                continue
            if float(row[sent_s]) >= least_s and (context_id := context(row)):
                sent.add(float(row[sent_s]), context_id)
    return asdict(measure_diversity(sent.contexts()))


def _context_of(at: Mapping[str, int]) -> Callable[[list[str]], str]:
    planned = at["context_id"]
    if "retrieval_ms" not in at:
        return itemgetter(planned)
    found, retrieval_ms = at["rag_context_id"], at["retrieval_ms"]
    return lambda row: row[found if row[retrieval_ms] else planned]


class _Sent:
    """Times and contexts in 16 bytes each, as a long run has millions of them.

    Sorted chunk by chunk, and merged when they are read.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._chunks: list[tuple[array[float], array[int]]] = []
        self._new: list[tuple[float, int]] = []

    def add(self, sent_s: float, context_id: str) -> None:
        number = self._numbers.setdefault(context_id, len(self._numbers))
        self._new.append((sent_s, number))
        if len(self._new) >= CHUNK:
            self._close_chunk()

    def contexts(self) -> Iterator[str]:
        """The contexts in the order of sending."""
        self._close_chunk()
        names = list(self._numbers)
        chunks = (zip(times, numbers, strict=True) for times, numbers in self._chunks)
        return (names[number] for _, number in heapq.merge(*chunks))

    def _close_chunk(self) -> None:
        new, self._new = sorted(self._new), []
        self._chunks.append((array("d", [at for at, _ in new]), array("q", [n for _, n in new])))
