"""What the service counts, in Prometheus' text format."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rag_store.document_index import Size
from rag_store.label import Label

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)
_LAG_EVERY_S = 0.05


class Metrics:
    """Counters of one service; reading and writing belong on the event loop."""

    def __init__(self, size: Callable[[], Size], depth: Callable[[], int]) -> None:
        """`size` and `depth` (queries in work) are asked when the page is."""
        self._registry = CollectorRegistry()
        of: dict[str, Any] = {"namespace": "kvswarm_rag", "registry": self._registry}
        counter, gauge = partial(Counter, **of), partial(Gauge, **of)
        seconds = partial(Histogram, buckets=_SECONDS, **of)
        self._requests = counter("requests", "requests answered", ("route", "status"))
        self._request_s = seconds("request_seconds", "whole requests", ("route",))
        self._stage_s = seconds("label_stage_seconds", "stages of a label", ("stage",))
        self._labels = counter("labels", "queries answered, refused or failed", ("result",))
        self._lag_s = seconds("loop_lag_seconds", "how late the event loop is")
        gauge("queue_depth", "queries that wait or are worked on").set_function(depth)
        self._size = size
        self._documents = gauge("documents", "documents in the library")
        self._chunks = gauge("chunks", "chunks in the library")
        for result in ("answered", "refused", "failed"):
            self._labels.labels(result)

    def request(self, route: str, status: int, took_s: float) -> None:
        """A request was answered; `route` is a pattern, not a path."""
        self._requests.labels(route, str(status)).inc()
        self._request_s.labels(route).observe(took_s)

    def label(self, label: Label) -> None:
        """A query was labelled, or refused."""
        self._labels.labels("refused" if label.doc_id is None else "answered").inc()
        timings = label.timings
        stages = ("queue", "embed", "search", "fuse", *(["rerank"] if timings.rerank_ms else []))
        for stage in stages:
            self._stage_s.labels(stage).observe(getattr(timings, f"{stage}_ms") / 1000)

    def label_failed(self) -> None:
        """A query got neither a label nor a refusal."""
        self._labels.labels("failed").inc()

    def page(self) -> bytes:
        """All of it as text."""
        size = self._size()
        self._documents.set(size.documents)
        self._chunks.set(size.chunks)
        return generate_latest(self._registry)

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            self._lag_s.observe(max(0.0, loop.time() - due_s))
