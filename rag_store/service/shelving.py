"""`/v1/documents`: add, update, list, read and remove."""

import asyncio
from dataclasses import asdict
from typing import Any

from aiohttp import web

from rag_store.catalog import Entry
from rag_store.documents import Document
from rag_store.service.body import document_of, read_body
from rag_store.service.refusal import Refusal, invalid, or_refusal
from rag_store.service.state import State

_PAGE = 1000


class Shelving:
    """Handlers for what changes or shows the documents."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def put(self, request: web.Request) -> web.Response:
        """Add or update one document (its own fields) or many (`documents`)."""
        library = self._state.library
        body = await read_body(request)
        if "documents" in body.fields:
            return await self._put_many(body.items("documents", self._state.limits.batch))
        document = document_of(body.fields, "document")
        with self._state.changes.entered(1):
            result = await library.put(document)
        status = 201 if result == "added" else 200
        reply = {"object": "document", "doc_id": document.doc_id, "result": result}
        return web.json_response(reply, status=status)

    async def list_all(self, request: web.Request) -> web.Response:
        """Ids and titles in the order of the ids, after `after`, at most `limit`."""
        library = self._state.library
        limit = _limit(request.query.get("limit", str(_PAGE)))
        after = request.query.get("after", "")
        rest = [doc_id for doc_id in library.doc_ids if doc_id > after]
        held = [entry for entry in map(library.entry, rest[:limit]) if entry]
        size = asdict(library.size)
        data = await asyncio.to_thread(_listed, held)
        reply = {"object": "list", "data": data, "has_more": len(rest) > limit, **size}
        return web.json_response(reply)

    async def get(self, request: web.Request) -> web.Response:
        """One document with its text."""
        doc_id = request.match_info["doc_id"]
        document = self._state.library.document(doc_id)
        if document is None:
            raise _unknown(doc_id)
        return web.json_response({"object": "document", **asdict(document)})

    async def delete(self, request: web.Request) -> web.Response:
        """Take one document out."""
        doc_id = request.match_info["doc_id"]
        with self._state.changes.entered(1):
            there = await self._state.library.remove(doc_id)
        if not there:
            raise _unknown(doc_id)
        return web.json_response({"object": "document", "doc_id": doc_id, "result": "removed"})

    async def _put_many(self, items: list[object]) -> web.Response:
        seen: set[str] = set()
        checked = [
            or_refusal(_document, item, f"documents[{at}]", seen) for at, item in enumerate(items)
        ]
        documents = [each for each in checked if isinstance(each, Document)]
        with self._state.changes.entered(1):
            report = await self._state.library.ingest(documents)
        counts = {name: getattr(report, name) for name in ("added", "updated", "unchanged")}
        told: list[dict[str, Any]] = [
            {"error": each.as_json()} if isinstance(each, Refusal) else {"doc_id": each.doc_id}
            for each in checked
        ]
        data = [{"index": at, **each} for at, each in enumerate(told)]
        return web.json_response({"object": "list", **counts, "data": data})


def _listed(entries: list[Entry]) -> list[dict[str, str]]:
    """Blocks where a text's digest was not asked for before."""
    return [
        {"doc_id": each.doc_id, "title": each.title, "text_digest": each.text_digest}
        for each in entries
    ]


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
