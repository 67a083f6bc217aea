"""Request bodies: JSON objects whose fields are checked one by one; unknown fields are ignored."""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from rag_store.documents import Document, clean
from rag_store.errors import CorpusError
from rag_store.readers.formats import check_id, check_text, check_title
from rag_store.service.refusal import Refusal, invalid


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object."""

    fields: dict[str, Any]

    def one_or_many(self, one: str, many: str, limit: int) -> tuple[list[object], bool]:
        """The items of exactly one of two fields, and whether it was `many`. Raises Refusal."""
        given = [name for name in (one, many) if self.fields.get(name) is not None]
        if len(given) != 1:
            raise invalid(f"give either {one!r} or {many!r}", one, "missing_field")
        if given[0] == one:
            return [self.fields[one]], False
        return self.items(many, limit), True

    def items(self, name: str, limit: int) -> list[object]:
        """The field, a list of 1 to `limit` items. Raises Refusal."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value:
            raise invalid(f"{name!r} must be a list with something in it", name, "wrong_type")
        if len(value) > limit:
            message = f"{name!r} has {len(value)} items: send at most {limit} at once"
            raise invalid(message, name, "too_many_items")
        return value

    def texts(self, name: str, limit: int, max_chars: int) -> list[str]:
        """A text or a list of them, none empty. Raises Refusal."""
        value = self.fields.get(name)
        if isinstance(value, str):
            return [usable_text(value, name, max_chars)]
        items = enumerate(self.items(name, limit))
        return [usable_text(item, f"{name}[{at}]", max_chars) for at, item in items]


async def read_body(request: web.Request) -> Body:
    """The request's JSON object. Raises Refusal (400), and web.HTTPException (413)."""
    try:
        value = json.loads((await request.read()).decode(), parse_constant=_no_constant)
    except web.RequestPayloadError:
        raise _malformed("the body cannot be decoded: send plain JSON") from None
    except ConnectionError:  # nobody will read this, but it is no mistake of ours
        raise _malformed("the body ended too early") from None
    except (ValueError, RecursionError):
        raise _malformed("the body is not JSON: send a JSON object in UTF-8") from None
    if not isinstance(value, dict):
        raise _malformed(f"the body is {shown(value)}: send a JSON object")
    return Body(value)


def usable_text(value: object, param: str, max_chars: int) -> str:
    """The value as clean text, where it says something. Raises Refusal (413, 422)."""
    if not isinstance(value, str):
        raise invalid(f"{param!r} is {shown(value)}: give a text", param, "wrong_type")
    if len(value) > max_chars:
        message = f"{param!r} has {len(value)} characters: send at most {max_chars}"
        raise Refusal(413, message, "too_long", param)
    if not (text := clean(value)):
        raise invalid(f"{param!r} is empty: send a text", param, "empty")
    return text


def document_of(value: object, param: str) -> Document:
    """A document, as readers of files would take it, from its JSON object. Raises Refusal."""
    if not isinstance(value, dict):
        raise invalid(f"{param!r} is {shown(value)}: give an object", param, "wrong_type")
    fields: dict[str, Any] = {"title": "", "questions": [], **value}
    for name, check in (("doc_id", check_id), ("title", check_title), ("text", check_text)):
        if name not in fields:
            raise invalid(f"{name!r} is missing", f"{param}.{name}", "missing_field")
        if not isinstance(fields[name], str):
            message = f"{name!r} is {shown(fields[name])}: give a text"
            raise invalid(message, f"{param}.{name}", "wrong_type")
        try:
            check(fields[name], repr(name))
        except CorpusError as error:
            raise invalid(str(error), f"{param}.{name}") from None
    if not clean(fields["text"]):
        raise invalid("'text' is empty: send a text", f"{param}.text", "empty")
    questions = fields["questions"]
    if not isinstance(questions, list) or not all(isinstance(each, str) for each in questions):
        message = f"'questions' is {shown(questions)}: give a list of texts"
        raise invalid(message, f"{param}.questions", "wrong_type")
    return Document(fields["doc_id"], fields["title"], fields["text"], tuple(questions))


def _malformed(message: str) -> Refusal:
    return Refusal(400, message, "malformed_body")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def shown(value: object) -> str:
    """As a message quotes it, cut off where it is long."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= 40 else f"{text[:40]}…"
