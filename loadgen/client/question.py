"""Single questions over the wire: the control side of HTTP, apart from the load."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson
from yarl import URL

from loadgen.client.transport import Head, request_headers
from loadgen.client.wire import WireTransport

MAX_BODY_BYTES = 16_000_000
"""vLLM's page of metrics has about 50,000."""


class TooLong(Exception):
    """An answer of more than MAX_BODY_BYTES; the rest was not read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host said to one question."""

    status: int
    content_type: str
    location: str
    body: bytes

    def json(self) -> dict[str, Any]:
        """The JSON object of a 200, else an empty one."""
        if self.status != 200:
            return {}
        try:
            decoded = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


class Questioner:
    """Asks one address over kept-alive connections; redirects are not followed."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        """`url` without a trailing slash; an answer may take `timeout_s`, connecting included.

        Raises UsageError for a header that cannot be sent.
        """
        self.timeout_s = timeout_s
        self._url = url
        self._headers = request_headers(
            URL(url).host_port_subcomponent or "", {"Accept": "*/*", **headers}
        )
        self._wire = WireTransport(url, headers, timeout_s)

    async def __aenter__(self) -> Self:
        await self._wire.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wire.__aexit__()

    async def ask(self, method: str, path: str, body: object = None) -> Answer:
        """The answer to one question, with a JSON body or none.

        Raises TooLong, and as Transport.post does.
        """
        sink = _Collector()
        await self._wire.send(self._request(method, path, body), sink, self.timeout_s)
        head = sink.head
        return Answer(head.status, head.content_type, head.location, bytes(sink.body))

    def _request(self, method: str, path: str, body: object) -> bytes:
        content = b"" if body is None else orjson.dumps(body)
        headers = dict(self._headers)
        if body is None:
            headers.pop("Content-Type", None)
        else:
            headers["Content-Length"] = str(len(content))
        lines = [f"{method} {URL(self._url + path).raw_path_qs} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + content


class _Collector:
    """Takes a reply whole."""

    def __init__(self) -> None:
        self.head = Head(0)
        self.body = bytearray()

    def resend(self) -> None:
        """See Sink."""

    def begin(self, head: Head) -> None:
        """See Sink."""
        self.head = head

    def feed(self, chunk: bytes, received_at: float) -> bool:
        """See Sink. Raises TooLong."""
        self.body += chunk
        if len(self.body) > MAX_BODY_BYTES:
            raise TooLong
        return False
