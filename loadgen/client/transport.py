"""The seam to the wire: post a body, and have the reply fed to a sink as it arrives."""

import errno
import math
import re
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from loadgen.client.failures import ConnectFailed, one_line
from loadgen.errors import UsageError

KEEPALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn, and so vLLM, hangs up: a request must not race it."""

RACE_S = 1.0
"""A host that closes an idle connection while a request is under way to it is heard within this
time. Who hangs up later has had the request: sending it again would be more work for one row."""

SETTLE_S = 0.02
"""How long a request waits for the end of a body of which nothing more is wanted, so that the next
one finds the connection free. It no longer waits where bodies end later than that."""

LINGER_S = 1.0
"""How long the end of such a body may take before its connection is dropped."""

BROKEN_BODY = "the connection broke in the middle of the reply"

_LIMITS = {
    errno.EMFILE: "this process has no file descriptors left: raise `ulimit -n`",
    errno.ENFILE: "this machine has no file descriptors left: raise `sysctl fs.file-max`",
    errno.EADDRNOTAVAIL: "this machine has no ports left for it: use fewer users or more machines",
}
"""Of the client's own machine: the host is not to blame."""

_CODINGS = {"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress"}
"""By which a body is no plain text (RFC 9110, 8.4.1; RFC 7932; RFC 8878)."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


class Head(NamedTuple):
    """The status and the headers of a reply that anybody here asks for; empty where not sent."""

    status: int
    content_type: str = ""
    retry_after: str = ""
    content_encoding: str = ""
    location: str = ""
    served_by: str = ""

    @property
    def is_compressed(self) -> bool:
        """Whether the body has a coding: some hosts name none, or a charset, in that header."""
        return not _CODINGS.isdisjoint(self.content_encoding.lower().replace(",", " ").split())


class Sink(Protocol):
    """Takes one reply as it arrives. What it raises ends the request and the connection."""

    patience_s: float
    """How long the body may go on before the reply is over; infinite while anything is missing."""

    def resend(self) -> None:
        """A kept connection was closed without an answer: the request goes out once more."""

    def begin(self, head: Head) -> None:
        """The headers are there; called once, before any byte of the body."""

    def feed(self, chunk: bytes, received_at: float) -> bool:
        """The next bytes of the body and their arrival in `time.perf_counter()` seconds.

        The time was taken before anything was parsed. True says that no more is wanted: the rest
        is only read so that the connection can be used again.
        """


class Transport(Protocol):
    """Posts JSON bodies to one address."""

    async def post(
        self, body: bytes, sink: Sink, timeout_s: float = math.inf, own_headers: bytes = b""
    ) -> None:
        """Send `body` and return at the end of the reply, not of its body; redirects are not
        followed. `own_headers` are of this request alone, each with its line's end.

        Raises ConnectFailed for no answer, Malformed for no HTTP, Truncated when the connection
        breaks after the headers, TimeoutError after `timeout_s`, and what the sink raises.
        """

    async def warm(self, connections: int) -> None:
        """Open so many connections ahead; one that fails is left for the requests to report."""


def request_headers(host: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Every header of a request but its length, the user's over our own.

    Raises UsageError for what no header can carry; values may be secrets and are not repeated.
    """
    sent = {
        "host": ("Host", host),
        "user-agent": ("User-Agent", "kvswarm"),
        "accept": ("Accept", "text/event-stream"),
        "accept-encoding": ("Accept-Encoding", "identity"),
        "content-type": ("Content-Type", "application/json"),
    }
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            shown = one_line(name, 60)
            raise UsageError(f"header {shown!r} holds characters no HTTP header can carry")
        sent[name.lower()] = (name, value)
    return dict(sent.values())


def tls_context() -> ssl.SSLContext:
    """The system's authorities, and host names checked."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def connect_failure(error: Exception, host: str) -> ConnectFailed:
    """What came of asking `host`."""
    failure = ConnectFailed(describe_connect_error(error, host))
    failure.is_own = getattr(getattr(error, "os_error", None) or error, "errno", None) in _LIMITS
    return failure


def describe_connect_error(error: Exception, host: str) -> str:
    """Why `host` could not be asked, in one line."""
    cause = getattr(error, "os_error", None) or error
    match cause:
        case socket.gaierror():
            return f"host name {host.rpartition(':')[0] or host} is unknown"
        case ssl.SSLError():
            return f"TLS with {host} failed: {one_line(_tls_reason(cause))}"
        case TimeoutError():
            return f"{host} did not answer in time"
        case EOFError():
            return f"{host} closed the connection before it answered"
    number = getattr(cause, "errno", None)
    if number == errno.ECONNREFUSED:
        return f"{host} refused the connection"
    if number in (errno.ECONNRESET, errno.EPIPE):
        return f"{host} reset the connection before it answered"
    if number in _LIMITS:
        return f"no connection to {host}: {_LIMITS[number]}"
    return f"no connection to {host}: {one_line(str(cause)) or type(cause).__name__}"


def _tls_reason(cause: object) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    return getattr(cause, "reason", None) or str(cause)
