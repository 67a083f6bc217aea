"""Routes of an engine that only the kvswarm that started it may use, over ASGI."""

from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.targets.own_routes import KEY_HEADER, KEY_VARIABLE, OwnRoutes

KEY = "a-key-of-ours"


async def status(
    monkeypatch: pytest.MonkeyPatch, path: str, kind: str = "http", **head: str
) -> Any:
    """The status of the answer, or what closed a websocket."""
    sent: list[dict[str, Any]] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    monkeypatch.setenv(KEY_VARIABLE, KEY)
    headers = [(name.encode(), value.encode()) for name, value in head.items()]
    await OwnRoutes(engine)({"type": kind, "path": path, "headers": headers}, lambda: None, send)
    return sent[0].get("status", sent[0].get("code"))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/models",
        "/health",
        "/healthcheck",
        "/metrics",
        "/version",
        "/tokenize",
    ],
)
async def test_public_routes_are_for_everybody(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await status(monkeypatch, path) == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/reset_prefix_cache", "/reset_mm_cache", "/sleep", "/wake_up", "/collective_rpc"),
        *("/server_info", "/pause", "/new_route_of_a_newer_vllm", "//v1/models", "/V1/models", "/"),
    ],
)
async def test_all_others_take_the_key(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = KEY_HEADER.lower()
    assert await status(monkeypatch, path) == 403
    assert await status(monkeypatch, path, **{name: KEY + "x"}) == 403
    assert await status(monkeypatch, path, **{name: KEY}) == 200
    assert await status(monkeypatch, path, "websocket") == 1008


def test_transformers_gives_no_model_up_for_a_page_in_a_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers.cli.serving")
    from loadgen.targets.guarded_transformers import guarded

    given_up: list[str] = []
    manager = SimpleNamespace(shutdown=lambda: given_up.append("/reset"), get_gen_models=list)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    app = guarded(manager, *4 * (None,), SimpleNamespace(is_cb_alive=lambda: True))
    asked = pytest.importorskip("starlette.testclient").TestClient(app)
    foreign = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    assert asked.post("/reset", headers=foreign).status_code == 403
    assert asked.post("/load_model", headers=foreign).status_code == 403
    assert given_up == []
    assert asked.get("/health").status_code == asked.get("/v1/models").status_code == 200
    assert asked.post("/reset", headers={KEY_HEADER: KEY}).status_code == 200
    assert given_up == ["/reset"]


def test_without_a_key_the_engine_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(KeyError):
        OwnRoutes(lambda *_: None)  # type: ignore[arg-type, return-value]
