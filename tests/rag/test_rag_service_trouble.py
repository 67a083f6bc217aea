"""The service under pressure and with parts of it gone."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from embedding_host import EmbeddingHost, embedding_host
from service_process import (
    RAG,
    Later,
    Service,
    chroma_server,
    listens,
    rag,
    service,
    wait_until,
)

from loadgen.targets.hardware import free_ports

DOCUMENT = {"doc_id": "paging", "title": "Paged attention", "text": "Blocks are paged."}


def ask(running: Service, query: str) -> Later:
    return Later(lambda: running.post("/v1/label", {"query": query}))


def wait_for_depth(running: Service, depth: int) -> None:
    wait_until(lambda: running.metric("kvswarm_rag_queue_depth") == depth)


def test_a_full_queue_says_so_and_empties(tmp_path: Path) -> None:
    with embedding_host() as host, service(tmp_path, *host.options, "--queue", 2) as running:
        running.post("/v1/documents", DOCUMENT)
        host.open.clear()
        held = [ask(running, "first"), ask(running, "second")]
        wait_for_depth(running, 2)
        full = running.post("/v1/label", {"query": "third"})
        assert (full.status, full.error["code"]) == (429, "queue_full")
        assert full.headers["Retry-After"] == "1"
        assert full.error["type"] == "rate_limit_error"
        assert running.post("/v1/embeddings", {"input": "third"}).status == 429
        assert running.get("/health").status == 200, "the loop turns while the embedder waits"
        host.open.set()
        assert [each.reply().status for each in held] == [200, 200]
        wait_for_depth(running, 0)
        assert running.post("/v1/label", {"query": "third"}).status == 200


def test_clients_that_leave_or_speak_no_http_leave_no_traceback(tmp_path: Path) -> None:
    head = b"POST /v1/label HTTP/1.1\r\nHost: localhost\r\n"
    with service(tmp_path) as running:
        running.post("/v1/documents", DOCUMENT)
        port = port_of(running)
        for raw in (
            head + b"Content-Length: 100\r\n\r\n{",
            head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GARBAGE\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(raw)
        gone = 'kvswarm_rag_requests_total{route="/v1/label",status="400"}'
        wait_until(lambda: gone in str(running.get("/metrics").body))
        code, errors = running.stop()
    assert code == 0
    assert errors.count("\n") == 1, errors  # that the library is empty


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_are_finished_after_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    with embedding_host() as host, service(tmp_path, *host.options) as running:
        running.post("/v1/documents", DOCUMENT)
        host.open.clear()
        held = ask(running, "in flight")
        wait_for_depth(running, 1)
        os.kill(running.process.pid, number)
        # A request in this instant may wait for the drain's end: only the port is asked.
        wait_until(lambda: not listens(port_of(running)))
        host.open.set()
        assert held.reply().body["candidates"][0]["doc_id"] == "paging"
        assert running.process.wait(30) == 0


def port_of(running: Service) -> int:
    return int(running.url.rpartition(":")[2])


def test_two_signals_at_once_are_one(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            running.process.send_signal(number)
        _, errors = running.process.communicate(timeout=30)
    assert running.process.returncode == 0
    assert errors.count("\n") == 1, errors  # that the library is empty


def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    with embedding_host() as host, service(tmp_path, *host.options, "--drain", "0.2") as running:
        host.open.clear()
        ask(running, "never answered")
        wait_for_depth(running, 1)
        running.process.terminate()
        assert running.process.wait(20) == 1, "the embedder would have answered after 30 s"


def test_what_an_embedder_refuses_is_not_to_be_asked_again(tmp_path: Path) -> None:
    with embedding_host() as host, service(tmp_path, *host.options) as running:
        running.post("/v1/documents", DOCUMENT)
        host.mode = "refusal"
        reply = running.post("/v1/label", {"query": "paged?"})
    assert (reply.status, reply.error["code"]) == (502, "embedder_refused")
    assert "too long" in reply.error["message"]
    assert "Retry-After" not in reply.headers


@pytest.mark.parametrize("mode", ["nan", "error"])
def test_an_embedder_out_of_order_is_503_and_recovers(tmp_path: Path, mode: str) -> None:
    with embedding_host() as host, service(tmp_path, *host.options) as running:
        running.post("/v1/documents", DOCUMENT)
        host.mode = mode
        for route, body in (
            ("/v1/label", {"query": "paged?"}),
            ("/v1/embeddings", {"input": "paged?"}),
            ("/v1/documents", {"doc_id": "new", "text": "new"}),
        ):
            reply = running.post(route, body)
            assert (reply.status, reply.error["code"]) == (503, "embedder_unavailable")
            assert "Retry-After" in reply.headers
        assert running.get("/v1/documents").body["documents"] == 1
        host.mode = "sound"
        assert running.post("/v1/label", {"query": "paged?"}).status == 200


@pytest.mark.parametrize(
    ("mode", "code"), [("nan", "embedder_unavailable"), ("refusal", "embedder_refused")]
)
def test_a_text_that_the_embedder_cannot_take_fails_alone(
    tmp_path: Path, mode: str, code: str
) -> None:
    with embedding_host() as host, service(tmp_path, *host.options) as running:
        running.post("/v1/documents", DOCUMENT)
        host.mode, host.word = mode, "odd"
        queries = {"queries": ["paged?", "an odd one", "blocks?"]}
        first, odd, last = running.post("/v1/label", queries).body["data"]
    assert first["doc_id"] == last["doc_id"] == "paging"
    assert odd["error"]["code"] == code


def test_a_document_that_the_embedder_cannot_take_is_named(tmp_path: Path) -> None:
    with embedding_host() as host, service(tmp_path, *host.options) as running:
        host.mode, host.word = "refusal", "odd"
        texts = {"even": "paged", "uneven": "an odd one", "last": "blocks"}
        given = [{"doc_id": doc_id, "text": text} for doc_id, text in texts.items()]
        reply = running.post("/v1/documents", {"documents": given})
        assert (reply.status, reply.error["code"]) == (502, "embedder_refused")
        assert reply.error["message"].startswith("document 'uneven': ")
        assert running.get("/v1/documents").body["documents"] == 0


def test_a_server_out_of_order_is_not_asked_for_each_text(tmp_path: Path) -> None:
    with embedding_host() as host, service(tmp_path, *host.options) as running:
        running.post("/v1/documents", DOCUMENT)
        host.mode, before = "error", host.requests
        reply = running.post("/v1/label", {"queries": ["one", "two", "three"]})
        assert {each["error"]["code"] for each in reply.body["data"]} == {"embedder_unavailable"}
        assert host.requests == before + 1


def test_a_lost_chroma_server_is_503_and_recovers(tmp_path: Path) -> None:
    (port,), folder = free_ports(1), tmp_path / "chroma"
    options = ("--chroma-url", f"http://127.0.0.1:{port}")
    with (
        chroma_server(folder, port) as chroma,
        service(tmp_path / "rag", *options) as running,
    ):
        running.post("/v1/documents", DOCUMENT)
        assert running.get("/ready").status == 200
        chroma.kill()
        chroma.wait()
        new = {"doc_id": "new", "text": "Clocks swing."}
        for reply in (running.get("/ready"), running.post("/v1/documents", new)):
            assert (reply.status, reply.error["code"]) == (503, "store_unavailable")
            assert reply.headers["Retry-After"] == "1"
            assert "\n" not in reply.error["message"]
        assert running.get("/health").status == 200
        kept = running.post("/v1/label", {"query": "paged?"})
        assert kept.body["candidates"][0]["doc_id"] == "paging", "labels come from memory"
        with chroma_server(folder, port):
            wait_until(lambda: running.get("/ready").status == 200)
            assert running.post("/v1/documents", new).status == 201
            assert running.post("/v1/label", {"query": "clocks"}).body["doc_id"] == "new"


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    with service(tmp_path):
        second = rag("serve", "--port", 0, "--path", tmp_path, "--embedder", "hashing")
    assert second.returncode == 1
    assert second.stdout == ""
    assert "in use by another process" in second.stderr
    assert second.stderr.count("\n") == 1


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with service(tmp_path / "a") as running:
        port = port_of(running)
        fixed = ("--path", tmp_path / "b", "--embedder", "hashing")
        second = rag("serve", "--port", port, *fixed)
    assert second.returncode == 2
    assert f"127.0.0.1:{port}" in second.stderr
    assert second.stderr.count("\n") == 1


def test_an_index_killed_on_the_way_is_completed(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for at in range(40):
        (corpus / f"d{at:02}.txt").write_text(f"number{at} " + f"word{at} filler text " * 250)
    with embedding_host() as host:
        options = (corpus, "--path", tmp_path / "rag", *host.options)
        _kill_midway(host, options)
        done = rag("index", *options)
        assert done.returncode == 0, done.stderr
        assert "40 documents" in done.stdout
        added = int(done.stdout.split()[0])
        assert 0 < added < 40, "what was stored before the kill is not done again"
        assert rag("index", *options).stdout.startswith("0 added, 0 updated, 40 unchanged")
        label = rag("label", "word37 number37", "--path", tmp_path / "rag", *host.options)
    assert label.stdout.startswith("d37\t")


def _kill_midway(host: EmbeddingHost, options: tuple[object, ...]) -> None:
    # The first documents are stored after 18 requests, and all after 33.
    host.hold_after(22)
    process = subprocess.Popen([*RAG, "index", *map(str, options)])
    wait_until(lambda: host.waiting == 1)
    process.kill()
    process.wait()
    host.open.set()
