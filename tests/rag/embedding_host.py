"""An OpenAI-style embedding server that tests can hold, spoil and switch off."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rag_store.embedders import HashingEmbedder


class EmbeddingHost:
    """`url` is for --embedder-url. Clear `open` to hold requests, set `mode` to spoil replies.

    Only what is asked with a text that holds `word` is spoilt; `requests` are counted.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.open = threading.Event()
        self.open.set()
        self.mode = "sound"
        self.word = ""
        self.requests = 0
        self.waiting = 0
        self._left = -1  # no limit

    def hold_after(self, requests: int) -> None:
        """Answer so many more, then hold until `open` is set."""
        self._left = requests

    @property
    def options(self) -> tuple[str, ...]:
        return ("--embedder", "openai", "--embedder-model", "m", "--embedder-url", self.url)

    def answer(self, texts: list[str]) -> tuple[int, dict[str, Any]]:
        self.requests += 1
        self._left -= 1
        if self._left == -1:
            self.open.clear()
        self.waiting += 1
        self.open.wait(30)
        self.waiting -= 1
        spoilt = [self.word in text for text in texts]
        if self.mode == "error" and any(spoilt):
            return 500, {"error": "out of order"}
        if self.mode == "refusal" and any(spoilt):
            return 400, {"error": "too long"}
        rows = [each.vector.tolist() for each in HashingEmbedder(64).embed(texts)]
        if self.mode == "nan":
            rows = [
                [float("nan")] * 64 if bad else row for row, bad in zip(rows, spoilt, strict=True)
            ]
        return 200, {"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)]}


@contextmanager
def embedding_host() -> Iterator[EmbeddingHost]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            status, reply = host.answer(texts)
            raw = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    host = EmbeddingHost(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield host
    finally:
        host.open.set()
        server.shutdown()
        server.server_close()
