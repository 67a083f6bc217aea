"""What the service counts, in Prometheus' text format."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rag_store.document_index import Size
from rag_store.label import Label
from rag_store.service.refusal import Handler

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
        Gauge("queue_depth", "queries that wait or are worked on", **of).set_function(depth)
        self._size = size
        self._documents = Gauge("documents", "documents in the library", **of)
        self._chunks = Gauge("chunks", "chunks in the library", **of)
        for result in ("answered", "refused", "failed"):
            self._labels.labels(result)

    @web.middleware
    async def counting(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count requests by the pattern of their route, and time them."""
        since_s = time.perf_counter()
        response = await handler(request)
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "unknown"
        self._requests.labels(route, str(response.status)).inc()
        self._request_s.labels(route).observe(time.perf_counter() - since_s)
        return response

    def label(self, label: Label | None) -> None:
        """A query was labelled or refused; None where it got neither."""
        if label is None:
            self._labels.labels("failed").inc()
            return
        self._labels.labels("refused" if label.doc_id is None else "answered").inc()
        timings = label.timings
        stages = ("queue", "embed", "search", "fuse", *(["rerank"] if timings.rerank_ms else []))
        for stage in stages:
            self._stage_s.labels(stage).observe(getattr(timings, f"{stage}_ms") / 1000)

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
