"""The transports there are, by name."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from loadgen.client.settings import TransportName
from loadgen.client.wire import WireTransport

if TYPE_CHECKING:
    from loadgen.client.aiohttp_transport import AiohttpTransport


def _aiohttp(url: str, headers: Mapping[str, str], connect_timeout_s: float) -> "AiohttpTransport":
    # Only now: its import is a good part of a swarm's start.
    from loadgen.client.aiohttp_transport import AiohttpTransport

    return AiohttpTransport(url, headers, connect_timeout_s)


TRANSPORTS: Mapping[
    TransportName, Callable[[str, Mapping[str, str], float], "WireTransport | AiohttpTransport"]
] = {"wire": WireTransport, "aiohttp": _aiohttp}
