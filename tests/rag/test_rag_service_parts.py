"""Parts of the service without a process: what reaches the library, and on which thread."""

import json
import threading
from types import SimpleNamespace
from typing import Any, cast

from aiohttp.test_utils import make_mocked_request

from rag_store.document_index import Size
from rag_store.library import Library
from rag_store.service.body import Body
from rag_store.service.handlers import Handlers, Limits
from rag_store.service.metrics import Metrics


def test_texts_are_clean_and_in_order() -> None:
    body = Body({"one": "\ud800 hello", "many": ["b\udc00", " a\r\nc\x00", "b"]})
    assert body.texts("one", 9, 99) == ["hello"]
    assert body.texts("many", 9, 99) == ["b", "a\nc", "b"]


def test_a_page_of_metrics_asks_once_for_the_size() -> None:
    sizes = iter([Size(2, 5), Size(3, 7)])
    metrics = Metrics(lambda: next(sizes), lambda: 0)
    for documents, chunks in ((2, 5), (3, 7)):
        page = metrics.page().decode()
        assert f"\nkvswarm_rag_documents {documents}.0\n" in page
        assert f"\nkvswarm_rag_chunks {chunks}.0\n" in page


class TellingEntry:
    """An entry whose text's digest is the thread that makes it."""

    doc_id, title = "a", "A"

    @property
    def text_digest(self) -> str:
        return str(threading.get_ident())


async def test_digests_of_a_list_are_not_made_on_the_loop() -> None:
    library = SimpleNamespace(doc_ids=("a",), entry=lambda _: TellingEntry(), size=Size(1, 1))
    handlers = Handlers(Limits())
    handlers.opened = cast(Library, library)
    reply = await handlers.list_all(make_mocked_request("GET", "/v1/documents"))
    data: list[Any] = json.loads(cast(bytes, reply.body))["data"]
    assert data[0]["text_digest"].isdigit()
    assert data[0]["text_digest"] != str(threading.get_ident())
