"""The address of a host, in one form."""

import re
from urllib.parse import SplitResult, urlsplit

from loadgen.client.fault_text import one_line
from loadgen.errors import HostError


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
    except ValueError as error:
        raise HostError(f"host {_shown(url)!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise HostError(f"host {_shown(url)!r} has scheme {parts.scheme}: use http or https")
    if not hostname or any(char.isspace() for char in url):
        raise HostError(f"host {_shown(url)!r} is not a URL: write http://NAME:PORT")
    return parts
