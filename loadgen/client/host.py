"""Control questions to hosts, apart from the load: their answers, or why there is none."""

import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import orjson
from yarl import URL

from loadgen.client.failures import (
    MAX_CHARS,
    ConnectFailed,
    Malformed,
    Truncated,
    host_message,
    one_line,
    redacted,
    secrets_of,
)
from loadgen.client.transport import Head, request_headers
from loadgen.client.wire import WireTransport
from loadgen.errors import HostError

MAX_BODY_BYTES = 16_000_000
"""vLLM's page of metrics has about 50,000."""


def base_url(url: str) -> str:
    """`url` as scheme, host, port and path prefix, without a trailing slash or `/v1`.

    Raises HostError for anything that is not an http(s) address, and for one that carries
    credentials, because addresses are written into run directories.
    """
    parts = _split(url.strip())
    if parts.username is not None or parts.password is not None:
        raise HostError(
            f"the host URL for {parts.hostname} holds credentials: "
            "use KVSWARM_API_KEY or --header instead"
        )
    if parts.query or parts.fragment:
        raise HostError(f"host {_shown(url)!r} has a query or fragment: give only its address")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _shown(url: str) -> str:
    """`url` without the parts where keys and passwords tend to be."""
    address = url.strip().partition("?")[0].partition("#")[0]
    return one_line(re.sub(r"[^/@]*@", "***@", address))


def _split(url: str) -> SplitResult:
    if "://" not in url:
        raise HostError(f"host {_shown(url)!r} has no scheme: write http://{_shown(url)}")
    try:
        parts = urlsplit(url)
        hostname, _ = parts.hostname, parts.port
        URL(url)  # it knows more of names
    except ValueError as error:
        raise HostError(f"host {_shown(url)!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise HostError(f"host {_shown(url)!r} has scheme {parts.scheme}: use http or https")
    if not hostname or any(char.isspace() for char in url):
        raise HostError(f"host {_shown(url)!r} is not a URL: write http://NAME:PORT")
    return parts


class TooLong(Malformed):
    """An answer of more than MAX_BODY_BYTES; the rest was not read."""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What a host said to one question."""

    status: int
    content_type: str
    location: str
    body: bytes
    date: str = ""

    def json(self) -> dict[str, Any]:
        """The JSON object of a 200, else an empty one."""
        if self.status != 200:
            return {}
        try:
            decoded = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


class ControlClient:
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

    async def ask(self, method: str, path: str, body: object = None) -> HostAnswer:
        """The answer to one question, with a JSON body or none.

        Raises a StreamFailure, of which TooLong is one, and TimeoutError.
        """
        sink = WholeReply()
        await self._wire.send(self._request(method, path, body), sink, self.timeout_s)
        head = sink.head
        return HostAnswer(
            head.status, head.content_type, head.location, bytes(sink.body), head.date
        )

    def _request(self, method: str, path: str, body: object) -> bytes:
        content = b"" if body is None else orjson.dumps(body)
        headers = dict(self._headers)
        if body is None:
            headers.pop("Content-Type", None)
        if method != "GET":
            headers["Content-Length"] = str(len(content))
        lines = [f"{method} {URL(self._url + path).raw_path_qs} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + content


class WholeReply:
    """The sink of a reply that is wanted whole. Raises TooLong into the transport."""

    patience_s = math.inf

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


class Host:
    """One host's questions and answers; every failure to reach it is a HostError."""

    def __init__(self, url: str, headers: Mapping[str, str], client: ControlClient) -> None:
        self.url = url
        self.has_key = "authorization" in {name.lower() for name in headers}
        self._secrets = secrets_of(headers)
        self._client = client

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, url: str, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator["Host"]:
        """A host at `url` whose answers may take `timeout_s` each. Raises HostError for no URL."""
        address = base_url(url)
        async with ControlClient(address, headers, timeout_s) as client:
            yield cls(address, headers, client)

    async def ask(self, method: str, path: str, body: object = None) -> HostAnswer:
        """The answer to one question, with a JSON body or none. Raises HostError for no answer."""
        try:
            return await self._client.ask(method, path, body)
        except TimeoutError:
            raise HostError(
                f"host {self.url} did not answer {path} within {self._client.timeout_s:g} s: "
                "is it still starting, or overloaded?"
            ) from None
        except TooLong as error:
            raise HostError(
                f"host {self.url} answers {path} without end: "
                "is it the address of an inference server?"
            ) from error
        except Malformed as error:
            raise HostError(
                f"host {self.url} does not speak HTTP: check the port, and http against https"
            ) from error
        except (ConnectFailed, Truncated) as error:
            raise HostError(
                f"host {self.url} cannot be used, {error}: is it running, "
                "and are name and port right?"
            ) from error

    def quote(self, answer: HostAnswer) -> str:
        """The host's own words in an error answer, short and without our secrets."""
        return self.safe(host_message(answer.body), 120)

    def safe(self, text: str, max_chars: int = MAX_CHARS) -> str:
        """Any text of the host, as `quote` has it."""
        return one_line(redacted(text, self._secrets), max_chars)
