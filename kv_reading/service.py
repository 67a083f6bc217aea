"""KV labels over HTTP, in the protocol of the RAG service: `/v1/label`, `/health`, `/ready`."""

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest

from kv_reading import KvError
from kv_reading.labelling import FEATURES, KvLabel, KvLabeller
from rag_store.documents import clean
from rag_store.service.body import read_body, usable_text
from rag_store.service.foreign import is_loopback
from rag_store.service.refusal import Gate, Refusal, guarded, or_refusal, refusing

QUEUE, BATCH, MAX_CHARS = 512, 256, 20_000
"""Questions in work, questions in one request, characters of one."""
DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class KvServiceFacts:
    """What the service tells of itself; `model` is the name under which it is served."""

    model: str
    features: str
    documents: int
    questions: int


class KvService:
    """Handlers. One forward pass at a time, in a thread beside the event loop."""

    def __init__(self, labeller: KvLabeller, model: str) -> None:
        self._labeller = labeller
        self.facts = KvServiceFacts(model, FEATURES, len(labeller.doc_ids), labeller.questions)
        self._thread = ThreadPoolExecutor(1)
        self._gate = Gate(QUEUE)
        self._registry = CollectorRegistry()
        help_text = "waiting and computing of a label"
        self._seconds = Histogram("kvswarm_kv_label_seconds", help_text, registry=self._registry)

    def app(self, loopback: bool = True) -> web.Application:
        """All routes; with `loopback` it is to be called by such names alone."""
        app = web.Application(middlewares=[refusing, guarded(loopback)])
        app.router.add_post("/v1/label", self.label)
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def label(self, request: web.Request) -> web.Response:
        """Which document each question is about. Raises Refusal."""
        body = await read_body(request)
        queries, many = body.one_or_many("query", "queries", BATCH)
        checked = [
            or_refusal(usable_text, query, f"queries[{at}]" if many else "query", MAX_CHARS)
            for at, query in enumerate(queries)
        ]
        if not many and isinstance(checked[0], Refusal):
            raise checked[0]
        with self._gate.entered(len(checked)):
            labels = [await self._label_or_error(each) for each in checked]
        if not many:
            return web.json_response(labels[0])
        data = [{"index": at, **label} for at, label in enumerate(labels)]
        return web.json_response({"object": "list", "data": data})

    async def _label_or_error(self, text: str | Refusal) -> dict[str, Any]:
        if isinstance(text, Refusal):
            return {"error": text.as_json()}
        return await self._label(clean(text))

    async def _label(self, text: str) -> dict[str, Any]:
        since_s = time.perf_counter()
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, self._labeller.label, text)
        took_s = time.perf_counter() - since_s
        self._seconds.observe(took_s)
        return label_json(found, took_s * 1000)

    async def health(self, request: web.Request) -> web.Response:
        """The process lives and its event loop turns; by what it labels."""
        return web.json_response({"status": "ok", **asdict(self.facts)})

    async def ready(self, request: web.Request) -> web.Response:
        """It listens only once everything is computed; with the documents a label can be."""
        doc_ids = list(self._labeller.doc_ids)
        return web.json_response({"status": "ready", **asdict(self.facts), "doc_ids": doc_ids})

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus' text."""
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(self._registry), headers=headers)


def label_json(label: KvLabel, total_ms: float) -> dict[str, Any]:
    """In the form of the RAG service's labels. Scores are 1 for no distance and fall towards 0."""
    scores = [1 / (1 + each.distance) for each in label.candidates]
    pairs = zip(label.candidates, scores, strict=True)
    return {
        "object": "label",
        "doc_id": label.candidates[0].doc_id if label.candidates else None,
        "score": scores[0] if scores else 0.0,
        "threshold": 0.0,
        "margin": scores[0] - scores[1] if len(scores) > 1 else 0.0,
        "candidates": [{"doc_id": each.doc_id, "score": score} for each, score in pairs],
        "timings": {
            "queue_ms": max(0.0, total_ms - label.compute_ms - label.search_ms),
            "compute_ms": label.compute_ms,
            "search_ms": label.search_ms,
            "total_ms": total_ms,
        },
    }


def bound_socket(bind: str, port: int) -> socket.socket:
    """An address of our own, taken before the model is loaded. Raises KvError."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((bind.strip() or ".", port))  # a blank would be all addresses
    # UnicodeError: a name with an empty part, or one longer than names have.
    except (OSError, OverflowError, UnicodeError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        raise KvError(
            f"cannot listen on {bind}:{port}: {reason}: choose another --bind or --port"
        ) from error
    return found


def serve(service: KvService, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; requests in flight have two seconds. `announce` is called
    once both can come."""

    async def started(app: web.Application) -> None:
        announce()

    app = service.app(is_loopback(listener.getsockname()[0]))
    app.on_startup.append(started)
    listener.listen()
    web.run_app(app, sock=listener, access_log=None, print=None, shutdown_timeout=DRAIN_S)
