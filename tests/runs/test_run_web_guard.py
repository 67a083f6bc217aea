"""Who may drive a web UI, and what its form may not do: it is asked as a hostile page would."""

import json
import os
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from run_process import KVSWARM, TIMEOUT_S, HostProcess, host_process, wait_until

from loadgen.targets.hardware import free_ports

SECRETS = ("sk-of-the-user", "team-of-the-user", "account-of-the-user")
ROUTES = (
    *("/", "/assets/favicon-light.png", "/stats/requests", "/stats/requests/csv", "/stats/report"),
    *("/stats/failures/csv", "/exceptions", "/exceptions/csv", "/tasks", "/logs", "/login"),
    *("/worker-count", "/kvswarm/live", "/kvswarm/csv/requests.csv", "/kvswarm/static/live.js"),
    *("/nowhere", "/static/x"),
)
CHANGES = ("/swarm", "/stop", "/stats/reset", "/user")


class Ui:
    """A running web UI, asked with any headers."""

    def __init__(self, port: int, corpus: Path, log: Path, host: str) -> None:
        self.port, self.corpus, self.log, self.host = port, corpus, log, host

    def ask(
        self, method: str, path: str, form: dict[str, Any] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        body = None if form is None else urllib.parse.urlencode(form, doseq=True)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent |= {"Content-Type": "application/x-www-form-urlencoded"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return (
                answer.status,
                dict(answer.getheaders()),
                answer.read().decode("utf-8", "replace"),
            )
        finally:
            connection.close()

    def swarm(self, **fields: Any) -> dict[str, Any]:
        """What the form says to a submission."""
        form = {"user_count": 1, "spawn_rate": 1, "host": self.host, "model": "normal", **fields}
        return dict(json.loads(self.ask("POST", "/swarm", form)[2]))

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/stats/requests")[0] == 200
        except OSError:
            return False


@contextmanager
def running(folder: Path, host: str, *options: str) -> Iterator[Ui]:
    corpus = folder / "corpus"
    corpus.mkdir()
    for name in "abcdefgh":
        (corpus / f"{name}.txt").write_text(f"All that is known of {name}. " * 20)
    asked = [{"qid": n, "question": f"What is {n}?", "doc_id": n} for n in "abcdefgh"]
    (corpus / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    ui = Ui(*free_ports(1), corpus, folder / "log", host)
    body = json.dumps({"account": SECRETS[2]})
    command = [*KVSWARM, "ui", "unordered", "--host", host, "--web-port", str(ui.port), *options]
    command += ["--header", f"X-Team: {SECRETS[1]}", "--extra-body", body, "--tokenizer", ""]
    command += ["--corpus", str(corpus), "--out", str(folder / "runs")]
    environment = {**os.environ, "KVSWARM_API_KEY": SECRETS[0]}
    with ui.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        wait_until(ui.answers)
        yield ui
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def own() -> Iterator[HostProcess]:
    with host_process() as process:
        yield process


@pytest.fixture(scope="module")
def ui(own: HostProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with running(tmp_path_factory.mktemp("ui"), own.url) as process:
        yield process


def test_no_route_answers_the_page_of_another(ui: Ui) -> None:
    here = f"127.0.0.1:{ui.port}"
    foreign = (
        {"Origin": "http://evil.example", "Host": f"evil.example:{ui.port}"},
        {"Origin": "null"},
        {"Host": f"evil.example:{ui.port}"},
        {"Origin": f"http://127.0.0.1:{ui.port + 1}"},
        {"Origin": f"http://localhost:{ui.port}", "Host": here},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Origin": "http://evil.example", "Upgrade": "websocket", "Connection": "Upgrade"},
    )
    asked = [("GET", path) for path in ROUTES] + [("POST", path) for path in CHANGES]
    asked += [("OPTIONS", "/swarm"), ("GET", "/swarm")]
    for method, path in asked:
        for headers in foreign:
            assert ui.ask(method, path, **headers)[0] == 403, (method, path, headers)


def test_its_own_page_is_answered_and_for_no_other(ui: Ui) -> None:
    own_page = {"Origin": f"http://localhost:{ui.port}", "Host": f"localhost:{ui.port}"}
    for path in ROUTES[:-2]:
        for headers in ({}, own_page):
            status, told, _ = ui.ask("GET", path, **headers)
            assert status in (200, 302, 404), path
            assert not [name for name in told if name.lower().startswith("access-control-")]
            assert told["X-Frame-Options"] == "SAMEORIGIN"


@pytest.mark.parametrize(
    "head",
    [
        "GET http://evil.example/stats/requests HTTP/1.1\r\nHost: localhost",
        "GET /stats/requests HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
        "GET /stats/requests HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        "Origin: http://evil.example",
        "GET /stats/requests HTTP/1.0\r\nAccept: */*",
    ],
)
def test_requests_that_no_browser_writes(ui: Ui, head: str) -> None:
    with socket.create_connection(("127.0.0.1", ui.port), timeout=TIMEOUT_S) as line:
        line.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
        assert line.makefile("rb").readline().split()[1] == b"403"


@pytest.mark.parametrize(
    "field",
    [
        *("out", "header", "extra_body", "key_host", "web_allowed_host"),
        *("foreign_host", "metrics_port", "web_login", "locustfile", "nonsense"),
    ],
)
def test_fields_that_the_form_does_not_show_are_refused(ui: Ui, tmp_path: Path, field: str) -> None:
    refused = ui.swarm(**{field: tmp_path / "new"})
    assert refused["success"] is False
    assert f"the form has no field '{field}'" in refused["message"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["corpus", "questions", "tokenizer", "trace"])
def test_a_refusal_does_not_tell_which_paths_exist(ui: Ui, tmp_path: Path, option: str) -> None:
    told = {
        str(ui.swarm(**{option: path}).get("message"))
        for path in (tmp_path, tmp_path / "missing", ui.corpus / ".." / "log", "gpt2")
    }
    assert told == {f"the form has no field '{option}': give it on the command line"}


class Taking(BaseHTTPRequestHandler):
    """Somebody's host: keeps all that it is sent, and answers as a host of one model."""

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "normal"}]}', "application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.taken.append(body)  # type: ignore[attr-defined]
        choice = b'{"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}'
        self._answer(b"data: " + choice + b"\n\ndata: [DONE]\n\n", "text/event-stream")

    def _answer(self, content: bytes, kind: str) -> None:
        self.server.taken.append(str(self.headers))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def taking_host() -> Iterator[tuple[str, list[str]]]:
    """The address of such a host and what it was sent."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        server.taken = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", server.taken  # type: ignore[attr-defined]
        server.shutdown()


def sent(taken: list[str]) -> bool:
    return any('"prompt"' in each for each in list(taken))


def test_another_host_gets_no_credentials(ui: Ui, own: HostProcess) -> None:
    with taking_host() as (url, taken):
        assert ui.swarm(host=url)["success"]
        wait_until(lambda: sent(taken))
        ui.ask("POST", "/stop")
        assert not [each for each in taken if any(secret in each for secret in SECRETS)]
        assert "no API key, --header or --extra-body goes to this host" in ui.log.read_text()
    # The next swarm of the host that was named has them again, however its address is spelt.
    assert ui.swarm(host=f"{own.url}/v1/")["success"]
    wait_until(lambda: bool(own.headers()))
    ui.ask("POST", "/stop")
    headers, body = own.headers()[-1], own.bodies()[-1]
    assert headers["Authorization"] == f"Bearer {SECRETS[0]}"
    assert (headers["X-Team"], body["account"]) == SECRETS[1:]


def test_the_command_line_allows_more(own: HostProcess, tmp_path: Path) -> None:
    with taking_host() as (url, taken):
        more = ("--key-host", url, "--web-allowed-host", "ui.example")
        with running(tmp_path, own.url, *more) as ui:
            assert ui.ask("GET", "/", Host="ui.example")[0] == 200
            assert ui.swarm(host=url)["success"]
            wait_until(lambda: sent(taken))
            ui.ask("POST", "/stop")
        assert all(any(secret in each for each in taken) for secret in SECRETS)
