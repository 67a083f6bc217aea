"""Web pages in a browser may not use a service that their reader's machine reaches."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from service_process import service

from rag_store.service.foreign import is_loopback
from rag_store.service.handlers import Handlers, Limits
from rag_store.service.server import make_app

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def local() -> AsyncIterator[Client]:
    async with TestClient(TestServer(make_app(Handlers(Limits())))) as client:
        yield client


@pytest.fixture
async def proxied() -> AsyncIterator[Client]:
    async with TestClient(TestServer(make_app(Handlers(Limits()), loopback=False))) as client:
        yield client


async def refused(client: Client, **headers: str) -> str | None:
    """The code of the refusal, None where there is none."""
    async with client.get("/health", headers=headers) as reply:
        if reply.status == 200:
            return None
        error = (await reply.json())["error"]
        assert (reply.status, error["type"]) == (403, "invalid_request_error")
        assert error["message"].isprintable()
        return str(error["code"])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8090", None),
        ("LOCALHOST", None),
        ("127.0.0.1:8090", None),
        ("127.1.2.3", None),
        ("[::1]:8090", None),
        ("localhost:8090", "http://localhost:8090"),
        ("localhost", "http://localhost:80"),
    ],
)
async def test_own_names_are_served(local: Client, host: str, origin: str | None) -> None:
    headers = {"Host": host} | ({"Origin": origin} if origin is not None else {})
    assert await refused(local, **headers) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8090", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "[::1", "localhost:x", ""],
)
async def test_a_name_that_a_page_has_led_here_is_refused(local: Client, host: str) -> None:
    assert await refused(local, Host=host) == "foreign_host"
    assert await refused(local, Host=host, Origin=f"http://{host}") == "foreign_host"


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost",
        "http://localhost:8091",
        "http://127.0.0.1:8090",
        "https://evil.example:8090",
        "chrome-extension://localhost",
        "http://localhost:99999",
        "null",
        "",
    ],
)
async def test_the_page_of_another_is_refused(local: Client, proxied: Client, origin: str) -> None:
    for client in (local, proxied):
        assert await refused(client, Host="localhost:8090", Origin=origin) == "foreign_origin"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("rag.example", None),
        ("rag.example", "https://rag.example"),
        ("rag.example:443", "https://rag.example"),
        ("rag.example:8090", "http://RAG.example:8090"),
    ],
)
async def test_behind_a_proxy_any_name_is_served(
    proxied: Client, host: str, origin: str | None
) -> None:
    headers = {"Host": host} | ({"Origin": origin} if origin is not None else {})
    assert await refused(proxied, **headers) is None


@pytest.mark.parametrize(
    ("bind", "known"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_which_addresses_are_this_machines(bind: str, known: bool) -> None:
    assert is_loopback(bind) is known


def test_the_bound_address_decides_which_names_are_served(tmp_path: Path) -> None:
    document = b'{"doc_id": "a", "text": "Planted."}'
    with service(tmp_path / "local") as running:
        planted = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
        for headers in (planted, {"Host": "evil.example"}):
            reply = running.send("POST", "/v1/documents", document, **headers)
            assert reply.status == 403
        assert running.get("/v1/documents").body["documents"] == 0
        counted = 'kvswarm_rag_requests_total{route="/v1/documents",status="403"}'
        assert running.metric(counted) == 2
    with service(tmp_path / "open", "--bind", "0.0.0.0") as running:
        assert running.send("GET", "/health", Host="rag.example").status == 200
        assert running.send("POST", "/v1/documents", document, **planted).status == 403
