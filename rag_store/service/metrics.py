"""What the service counts, in Prometheus' text format."""

import asyncio
from collections.abc import Callable
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
        seconds = {**of, "buckets": _SECONDS}
        self._requests = Counter("requests", "requests answered", ("route", "status"), **of)
        self._request_s = Histogram("request_seconds", "whole requests", ("route",), **seconds)
        self._stage_s = Histogram("label_stage_seconds", "stages of a label", ("stage",), **seconds)
        self._labels = Counter("labels", "queries answered, refused or failed", ("result",), **of)
        self._lag_s = Histogram("loop_lag_seconds", "how late the event loop is", **seconds)
        depth_gauge = Gauge("queue_depth", "queries that wait or are worked on", **of)
        depth_gauge.set_function(depth)
        self._size = size
        self._documents = Gauge("documents", "documents in the library", **of)
        self._chunks = Gauge("chunks", "chunks in the library", **of)
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
