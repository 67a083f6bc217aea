"""The handlers of all routes: what is asked, what is held, and how the service is."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from rag_store.document_index import Size
from rag_store.documents import Document
from rag_store.errors import RagError
from rag_store.label import Label
from rag_store.library import Library
from rag_store.service.body import Body, document_of, read_body, shown, usable_text
from rag_store.service.metrics import Metrics
from rag_store.service.refusal import Gate, Refusal, invalid, or_refusal, refusal_of

Shape = Callable[[Label], dict[str, Any]]

_PAGE = 1000
_PING_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is let in: queries at once, items in a batch, changes at once, bytes in a body."""

    queue: int = 512
    batch: int = 256
    changes: int = 16
    body_bytes: int = 4_000_000


class Handlers:
    """A method for each route, and what they share; belongs to the service's event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queries = Gate(limits.queue)
        self.changes = Gate(limits.changes)
        self.metrics = Metrics(self._size, lambda: self.queries.inside)
        self.opened: Library | None = None

    @property
    def library(self) -> Library:
        """The library. Raises Refusal (503) until it is open."""
        if self.opened is None:
            message = "the library is being opened: ask again in a second"
            raise Refusal(503, message, "opening")
        return self.opened

    def _size(self) -> Size:
        return self.opened.size if self.opened else Size(0, 0)

    async def label(self, request: web.Request) -> web.Response:
        """Which document each query is about."""
        return await self._answer(request, Label.as_json)

    async def retrieve(self, request: web.Request) -> web.Response:
        """Which document each query is about, with the document itself."""
        return await self._answer(request, self._retrieved)

    async def embed(self, request: web.Request) -> web.Response:
        """The embedder's vectors, in OpenAI's form."""
        library = self.library
        make = library.fingerprint
        body = await read_body(request)
        if body.fields.get("model") != "":
            _check_served(body, "model", make.embedder, "model_not_found")
        form = body.fields.get("encoding_format")
        if form not in (None, "float", "base64"):
            message = f"'encoding_format' is {shown(form)}: give float or base64"
            raise invalid(message, "encoding_format")
        if body.fields.get("dimensions") not in (None, make.dim):
            raise invalid(f"'dimensions' can only be {make.dim}", "dimensions")
        texts = body.texts("input", self.limits.batch, library.settings.max_query_chars)
        with self.queries.entered(len(texts)):
            vectors = [each.astype("<f4") for each in await library.embed(texts)]
        rows = [
            base64.b64encode(vector.tobytes()).decode() if form == "base64" else vector.tolist()
            for vector in vectors
        ]
        data = [{"object": "embedding", "index": at, "embedding": x} for at, x in enumerate(rows)]
        # OpenAI's form wants numbers here; texts are not counted in tokens.
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return _listed(data, model=make.embedder, usage=usage)

    async def _answer(self, request: web.Request, shape: Shape) -> web.Response:
        library = self.library
        body = await read_body(request)
        _check_served(body, "collection", library.settings.collection, "unknown_collection")
        queries, many = body.one_or_many("query", "queries", self.limits.batch)
        with self.queries.entered(len(queries)):
            labels = await self._label_all(queries, "queries" if many else None)
        told = [each if isinstance(each, Refusal) else or_refusal(shape, each) for each in labels]
        if many:
            return _listed([{"index": at, **_item_or_error(each)} for at, each in enumerate(told)])
        if isinstance(told[0], Refusal):
            raise told[0]
        return web.json_response(told[0])

    async def _label_all(self, queries: list[object], many: str | None) -> list[Label | Refusal]:
        most = self.library.settings.max_query_chars
        checked = [
            or_refusal(usable_text, query, f"{many}[{at}]" if many else "query", most)
            for at, query in enumerate(queries)
        ]
        texts = [each for each in checked if isinstance(each, str)]
        found = iter(await self.library.label_many(texts))
        results: list[Label | Refusal] = []
        for each in checked:
            result = each if isinstance(each, Refusal) else next(found)
            self.metrics.label(result if isinstance(result, Label) else None)
            results.append(refusal_of(result) if isinstance(result, RagError) else result)
        return results

    def _retrieved(self, label: Label) -> dict[str, Any]:
        found: dict[str, Any] = {"object": "retrieval", "doc_id": label.doc_id, "document": None}
        if label.doc_id is not None:
            document = self.library.document(label.doc_id)
            if document is None:
                message = f"the document {label.doc_id!a} was removed meanwhile: ask again"
                raise Refusal(503, message, "document_removed")
            names = ("doc_id", "title", "text")
            found["document"] = {name: getattr(document, name) for name in names}
        return {**found, "label": label.as_json()}

    async def put(self, request: web.Request) -> web.Response:
        """Add or update one document (its own fields) or many (`documents`)."""
        library, body = self.library, await read_body(request)
        if "documents" in body.fields:
            return await self._put_many(body.items("documents", self.limits.batch))
        document = document_of(body.fields, "document")
        with self.changes.entered(1):
            result = await library.put(document)
        return _done(document.doc_id, result, status=201 if result == "added" else 200)

    async def list_all(self, request: web.Request) -> web.Response:
        """Ids and titles in the order of the ids, after `after`, at most `limit`."""
        library = self.library
        limit = _limit(request.query.get("limit", str(_PAGE)))
        after = request.query.get("after", "")
        rest = [doc_id for doc_id in library.doc_ids if doc_id > after]
        held = [entry for entry in map(library.entry, rest[:limit]) if entry]
        size = asdict(library.size)
        names = ("doc_id", "title", "text_digest")  # the last takes long where it is asked first
        data = await asyncio.to_thread(
            lambda: [{name: getattr(each, name) for name in names} for each in held]
        )
        return _listed(data, has_more=len(rest) > limit, **size)

    async def get(self, request: web.Request) -> web.Response:
        """One document with its text."""
        doc_id = request.match_info["doc_id"]
        document = self.library.document(doc_id)
        if document is None:
            raise _unknown(doc_id)
        return web.json_response({"object": "document", **asdict(document)})

    async def delete(self, request: web.Request) -> web.Response:
        """Take one document out."""
        doc_id = request.match_info["doc_id"]
        with self.changes.entered(1):
            there = await self.library.remove(doc_id)
        if not there:
            raise _unknown(doc_id)
        return _done(doc_id, "removed")

    async def _put_many(self, items: list[object]) -> web.Response:
        seen: set[str] = set()
        checked = [
            or_refusal(_document, item, f"documents[{at}]", seen) for at, item in enumerate(items)
        ]
        documents = [each for each in checked if isinstance(each, Document)]
        with self.changes.entered(1):
            report = await self.library.ingest(documents)
        counts = {name: getattr(report, name) for name in ("added", "updated", "unchanged")}
        told = [
            _item_or_error(each if isinstance(each, Refusal) else {"doc_id": each.doc_id})
            for each in checked
        ]
        return _listed([{"index": at, **each} for at, each in enumerate(told)], **counts)

    async def health(self, request: web.Request) -> web.Response:
        """The process lives and its event loop turns."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """The library is open and Chroma answers."""
        library = self.library
        try:
            await asyncio.wait_for(library.ping(), _PING_TIMEOUT_S)
        except TimeoutError:
            message = f"Chroma has not answered in {_PING_TIMEOUT_S} s"
            raise Refusal(503, message, "store_unavailable") from None
        told = {
            "status": "ready",
            "collection": library.settings.collection,
            "embedder": library.fingerprint.embedder,
            **asdict(library.size),
            "corpus_digest": await library.corpus_digest(),
            "threshold": library.threshold.threshold,
        }
        return web.json_response(told)

    async def exposition(self, request: web.Request) -> web.Response:
        """Prometheus' text."""
        return web.Response(body=self.metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _listed(data: list[dict[str, Any]], **more: Any) -> web.Response:
    return web.json_response({"object": "list", "data": data, **more})


def _item_or_error(each: dict[str, Any] | Refusal) -> dict[str, Any]:
    return {"error": each.as_json()} if isinstance(each, Refusal) else each


def _done(doc_id: str, result: str, status: int = 200) -> web.Response:
    told = {"object": "document", "doc_id": doc_id, "result": result}
    return web.json_response(told, status=status)


def _check_served(body: Body, field: str, served: str, code: str) -> None:
    wanted = body.fields.get(field)
    if wanted not in (None, served):
        message = f"the {field} {shown(wanted)} is not served here, only {served!a}"
        raise Refusal(404, message, code, field)


def _document(item: object, param: str, seen: set[str]) -> Document:
    """The document, whose id goes to those `seen`. Raises Refusal."""
    document = document_of(item, param)
    if document.doc_id in seen:
        message = f"{document.doc_id!a} stands before in this list: send it once"
        raise invalid(message, f"{param}.doc_id")
    seen.add(document.doc_id)
    return document


def _limit(text: str) -> int:
    # int() refuses thousands of digits with an error of its own.
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_PAGE))
    if not is_number or not 1 <= int(text) <= _PAGE:
        raise invalid(f"'limit' is {text[:20]!a}: give 1 to {_PAGE}", "limit")
    return int(text)


def _unknown(doc_id: str) -> Refusal:
    return Refusal(404, f"there is no document {doc_id!a}", "unknown_document", "doc_id")
