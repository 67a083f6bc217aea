"""Vectors from a server with `/v1/embeddings`, and servers that are none or are out of order."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from model_host import model_host
from raw_host import raw_host

from rag_store.cli.main import main
from rag_store.embedders import EmbedderSpec, open_embedder
from rag_store.embedders.protocol import Embedder
from rag_store.errors import EmbedderError, EmbedderRefusal

ROUTE = "/v1/embeddings"
HTML = "<html>\n<body>\n\x1b[31mOut of order\n</body></html>"


def embedded(body: dict[str, Any]) -> tuple[int, Any]:
    rows = [{"index": at, "embedding": [len(text), 1]} for at, text in enumerate(body["input"])]
    return 200, {"data": rows}


def opened(url: str) -> Embedder:
    return open_embedder(EmbedderSpec("openai", "m", url))


def refused_label(url: str, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line, of a command that leaves nothing behind."""
    options = ("--embedder", "openai", "--embedder-model", "m", "--embedder-url", url)
    code = main(["label", "a", "--path", str(path / "library"), *options])
    said = capsys.readouterr().err
    assert said.startswith("kvswarm rag: ")
    assert said.count("\n") == 1
    assert said[:-1].isprintable()
    assert not (path / "library").exists()
    return code, said


@pytest.mark.parametrize("status", [301, 302, 307])
def test_nobody_else_gets_the_texts_or_the_key(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with model_host(ROUTE, embedded) as other:
        headers = {"Location": f"{other.url}{ROUTE}"}
        moved = lambda body: (status, web.Response(status=status, headers=headers))  # noqa: E731
        refused = pytest.raises(EmbedderRefusal, match=f"HTTP {status}: .* give the url")
        with model_host(ROUTE, moved) as host, refused:
            opened(host.url)
    assert host.keys == ["Bearer secret"]
    assert other.bodies == []


@pytest.mark.parametrize(
    "raw",
    [b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"da', b"SSH-2.0-OpenSSH\r\n\r\n", b""],
    ids=["cut off", "not HTTP", "hung up"],
)
def test_what_may_pass_is_unreachable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: bytes
) -> None:
    with raw_host(raw) as url:
        code, said = refused_label(url, tmp_path, capsys)
        with pytest.raises(EmbedderError) as told:
            opened(url)
    assert code == 1
    assert f"cannot reach {url}{ROUTE}: " in said
    assert told.type is EmbedderError, "a refusal would not be asked again"


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (500, HTML, "answered HTTP 500: <html> <body> [31mOut of order </body></html>"),
        (404, {"error": {"message": "no model m"}}, "answered HTTP 404: no model m"),
        (200, "not JSON", "did not answer with 1 embeddings: not JSON"),
        (200, "[" * 100_000, "did not answer with 1 embeddings"),
        (200, '{"data": [{"index": Infinity, "embedding": [1]}]}', "did not answer with 1"),
        (200, {"data": [{"index": 0, "embedding": []}]}, "did not answer with 1 embeddings"),
        (200, {"data": [{"index": 0, "embedding": [10**400]}]}, "did not answer with 1"),
        (200, {"data": [{"index": at, "embedding": [1]} for at in (0, 1)]}, "did not answer with"),
    ],
)
def test_a_reply_that_is_none_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, content: Any, told: str
) -> None:
    with model_host(ROUTE, lambda body: (status, content)) as host:
        code, said = refused_label(host.url, tmp_path, capsys)
    assert code == 1
    assert told in said


def test_a_vector_without_numbers_after_good_ones(tmp_path: Path) -> None:
    def emptied(body: dict[str, Any]) -> tuple[int, Any]:
        if body["input"] == ["dimension"]:
            return embedded(body)
        return 200, {"data": [{"index": 0, "embedding": []}]}

    with model_host(ROUTE, emptied) as host:
        embedder = opened(host.url)
        with pytest.raises(EmbedderError, match="did not answer with 1 embeddings"):
            embedder.embed(["a"])


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:abc",
        "http://localhost:99999",
        "http://[::1",
        "http://a b:80",
        "http://",
        "ftp://localhost",
        "localhost:8000",
    ],
)
def test_a_url_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, said = refused_label(url, tmp_path, capsys)
    assert code == 2
    assert f"the embedder's url is {url!r}: give http://host:port" in said


def test_a_password_in_the_url_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused_label("http://me:secret@localhost:9", tmp_path, capsys)
    assert code == 2
    assert "holds a password" in said
    assert "secret" not in said


@pytest.mark.parametrize("key", ["secret\n", "sec\rret", "sécret", "sec\udcffret"])
def test_a_key_that_no_header_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with model_host(ROUTE, embedded) as host:
        code, said = refused_label(host.url, tmp_path, capsys)
    assert code == 2
    assert "the key in OPENAI_API_KEY holds a line break" in said
    assert "ret" not in said.replace("OPENAI_API_KEY", "")
    assert host.bodies == []
