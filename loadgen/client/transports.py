"""The transports there are, by name."""

from collections.abc import Mapping

from loadgen.client.aiohttp_transport import AiohttpTransport
from loadgen.client.settings import TransportName
from loadgen.client.wire import WireTransport

TRANSPORTS: Mapping[TransportName, type[WireTransport] | type[AiohttpTransport]] = {
    "wire": WireTransport,
    "aiohttp": AiohttpTransport,
}
