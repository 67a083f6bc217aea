"""`/v1/label`, `/v1/retrieve` and `/v1/embeddings`."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from aiohttp import web

from rag_store.errors import RagError
from rag_store.label import Label
from rag_store.service.body import Body, read_body, usable_text
from rag_store.service.refusal import Refusal, invalid, or_refusal, refusal_of
from rag_store.service.state import State

Shape = Callable[[Label], dict[str, Any]]


class Queries:
    """Handlers for what is asked of the library."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def label(self, request: web.Request) -> web.Response:
        """Which document each query is about."""
        return await self._answer(request, Label.as_json)

    async def retrieve(self, request: web.Request) -> web.Response:
        """The same, with the document itself."""
        return await self._answer(request, self._retrieved)

    async def embed(self, request: web.Request) -> web.Response:
        """The embedder's vectors, in OpenAI's form."""
        library, limits = self._state.library, self._state.limits
        make = library.fingerprint
        body = await read_body(request)
        if body.fields.get("model") != "":
            _check_served(body, "model", make.embedder, "model_not_found")
        coded = body.choice("encoding_format", ("float", "base64")) == "base64"
        if body.fields.get("dimensions") not in (None, make.dim):
            raise invalid(f"'dimensions' can only be {make.dim}", "dimensions")
        texts = body.texts("input", limits.batch, library.settings.max_query_chars)
        with self._state.queries.entered(len(texts)):
            vectors = await library.embed(texts)
        rows = [_coded(vector) if coded else vector.tolist() for vector in vectors]
        data = [
            {"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)
        ]
        # OpenAI's form wants numbers here; texts are not counted in tokens.
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        reply = {"object": "list", "data": data, "model": make.embedder, "usage": usage}
        return web.json_response(reply)

    async def _answer(self, request: web.Request, shape: Shape) -> web.Response:
        library = self._state.library
        body = await read_body(request)
        _check_served(body, "collection", library.settings.collection, "unknown_collection")
        queries, many = body.one_or_many("query", "queries", self._state.limits.batch)
        with self._state.queries.entered(len(queries)):
            results = await self._label_all(queries, "queries" if many else None)
        if many:
            data = [{"index": at, **_item(result, shape)} for at, result in enumerate(results)]
            return web.json_response({"object": "list", "data": data})
        if isinstance(results[0], Refusal):
            raise results[0]
        return web.json_response(shape(results[0]))

    async def _label_all(self, queries: list[object], many: str | None) -> list[Label | Refusal]:
        most = self._state.library.settings.max_query_chars
        checked = [
            or_refusal(usable_text, query, f"{many}[{at}]" if many else "query", most)
            for at, query in enumerate(queries)
        ]
        texts = [each for each in checked if isinstance(each, str)]
        found = iter(await self._state.library.label_many(texts))
        results = [each if isinstance(each, Refusal) else _refused(next(found)) for each in checked]
        for result in results:
            if isinstance(result, Refusal):
                self._state.metrics.label_failed()
            else:
                self._state.metrics.label(result)
        return results

    def _retrieved(self, label: Label) -> dict[str, Any]:
        found: dict[str, Any] = {"object": "retrieval", "doc_id": label.doc_id, "document": None}
        if label.doc_id is not None:
            document = self._state.library.document(label.doc_id)
            if document is None:
                message = f"the document {label.doc_id!a} was removed meanwhile: ask again"
                raise Refusal(503, message, "document_removed")
            shown = {"doc_id": document.doc_id, "title": document.title, "text": document.text}
            found["document"] = shown
        return {**found, "label": label.as_json()}


def _check_served(body: Body, field: str, served: str, code: str) -> None:
    wanted = body.fields.get(field)
    if wanted not in (None, served):
        message = f"the {field} {wanted!a} is not served here, only {served!a}"
        raise Refusal(404, message, code, field)


def _refused(result: Label | RagError) -> Label | Refusal:
    return refusal_of(result) if isinstance(result, RagError) else result


def _item(result: Label | Refusal, shape: Shape) -> dict[str, Any]:
    shown = result if isinstance(result, Refusal) else or_refusal(shape, result)
    return {"error": shown.as_json()} if isinstance(shown, Refusal) else shown


def _coded(vector: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
