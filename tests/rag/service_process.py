"""`kvswarm rag serve` as a process, and what tests ask of it."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rag_store.cli.main import main

RAG = (sys.executable, "-m", "rag_store")
TIMEOUT_S = 60


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.body["error"])


@dataclass(frozen=True)
class Service:
    url: str
    process: subprocess.Popen[str]

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, body: object) -> Reply:
        return self.send("POST", path, json.dumps(body).encode())

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        request = urllib.request.Request(f"{self.url}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return _reply(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error)

    def metric(self, line: str) -> float:
        """The value after `line` on the metrics page."""
        page = str(self.get("/metrics").body)
        found = re.search(rf"^{re.escape(line)} (\S+)$", page, re.MULTILINE)
        assert found, f"no {line} in {page}"
        return float(found[1])

    def stop(self) -> tuple[int, str]:
        """Exit code and stderr after SIGTERM."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


def _reply(status: int, answer: Any) -> Reply:
    raw = answer.read().decode()
    kind = answer.headers.get("Content-Type", "")
    body = json.loads(raw) if kind.startswith("application/json") else raw
    return Reply(status, body, dict(answer.headers))


@contextmanager
def service(path: Path, *more: object) -> Iterator[Service]:
    """A server with the hashing embedder, unless told otherwise, on a free port."""
    kind = () if "--embedder" in more else ("--embedder", "hashing")
    command = [*RAG, "serve", "--port", "0", "--path", path, *kind, *more]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            raise AssertionError(line + process.communicate(timeout=30)[1])
        yield Service(found[0], process)
    finally:
        process.kill()
        process.communicate()


def rag(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A finished `python -m rag_store`."""
    return subprocess.run(
        [*RAG, *map(str, arguments)],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def rag_here(*arguments: object, stdin: str = "") -> Done:
    """The same in this process: starting Chroma takes a second each time."""
    out, errors, before = StringIO(), StringIO(), sys.stdin
    sys.stdin = StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            code = main(list(map(str, arguments)))
    finally:
        sys.stdin = before
    return Done(code, out.getvalue(), errors.getvalue())


@contextmanager
def chroma_server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Chroma's own server; the process is killed at the end, or before."""
    program = Path(sys.executable).with_name("chroma")
    command = [program, "run", "--path", folder, "--port", str(port), "--host", "127.0.0.1"]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: listens(port))
        yield process
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Later:
    """A request on its way in a thread."""

    def __init__(self, call: Callable[[], Reply]) -> None:
        self._call = call
        self._reply: Reply | Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reply(self) -> Reply:
        self._thread.join(30)
        assert isinstance(self._reply, Reply), self._reply
        return self._reply

    def _run(self) -> None:
        try:
            self._reply = self._call()
        except Exception as error:
            self._reply = error
