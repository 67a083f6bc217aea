"""One HTTP server on loopback that replays the replies of `replies/`, each below its own name."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

REPLIES = Path(__file__).with_name("replies")
RunCase = Callable[..., Any]
"""Makes a `Ran` of `tests/runs/run_process.py`, see `run_case`."""

MODELS = b'{"data":[{"id":"m","owned_by":"mock"}]}'


def reply(name: str) -> dict[str, Any]:
    """A file of `replies/`.

    `parts` are [milliseconds to wait, text] of the body, which ends `end_ms` later, or with `cut`
    breaks there. `status`, `type` and `headers` are of the head. `metrics` are pages of `/metrics`,
    one after another; the last one stays. With `key` every question must carry it.
    """
    return dict(json.loads((REPLIES / f"{name}.json").read_text()))


class ReplayHost:
    """Runs in a thread of its own; `/NAME/v1/completions` is answered by the reply NAME."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: Counter[tuple[str, str]] = Counter()
        """How often each path of each name was asked for."""
        self._replies: dict[str, Mapping[str, Any]] = {
            path.stem: reply(path.stem) for path in REPLIES.glob("*.json")
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(started, self._loop).result()
        self.url = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, replied: Mapping[str, Any]) -> str:
        """Answer so below this name as well; the URL to be asked."""
        self._replies[name] = replied
        return self.url_of(name)

    def url_of(self, name: str) -> str:
        """The address that answers by this reply."""
        return f"{self.url}/{name}"

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One question; whether another may follow."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        await reader.readexactly(int(fields.get("content-length", 0)))
        name, _, path = first.split()[1].removeprefix("/").partition("/")
        spec = self._replies.get(name, {})
        self.asked[name, path] += 1
        if "key" in spec and fields.get("authorization") != spec["key"]:
            _write_whole(writer, b"{}", "401 Unauthorized")
        elif path == "v1/models":
            _write_whole(writer, MODELS)
        elif path == "metrics" and "metrics" in spec:
            page = spec["metrics"][min(self.asked[name, path], len(spec["metrics"])) - 1]
            _write_whole(writer, page.encode(), kind="text/plain; version=0.0.4")
        elif path.endswith("completions") and "parts" in spec:
            await _replay(writer, spec)
            return not spec.get("cut")
        else:
            _write_whole(writer, b"{}", "404 Not Found")
        return True


async def _replay(writer: asyncio.StreamWriter, spec: Mapping[str, Any]) -> None:
    status, kind = spec.get("status", "200 OK"), spec.get("type", "text/event-stream")
    framing = f"Transfer-Encoding: chunked\r\n{spec.get('headers', '')}"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{framing}\r\n".encode())
    for wait_ms, text in spec["parts"]:
        await asyncio.sleep(wait_ms / 1000)
        data = text.encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await asyncio.sleep(spec.get("end_ms", 0) / 1000)
    if not spec.get("cut"):
        writer.write(b"0\r\n\r\n")


def _write_whole(
    writer: asyncio.StreamWriter,
    body: bytes,
    status: str = "200 OK",
    kind: str = "application/json",
) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
