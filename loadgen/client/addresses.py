"""The addresses behind one host name, asked of the event loop's own resolver."""

import asyncio
import ipaddress
import socket
import time

KNOWN_S = 10.0
"""How long an answer is believed."""


class Addresses:
    """Looks a name up once for all who ask meanwhile. An address stands for itself."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._literal = _is_address(host)
        self._looking: asyncio.Task[list[str]] | None = None
        self._asked_at = 0.0
        self._preferred = ""

    async def find(self) -> list[str]:
        """At least one address, first the one that served last. Raises OSError."""
        if self._literal:
            return [self._host]
        if self._looking is None or time.perf_counter() - self._asked_at > KNOWN_S:
            self._asked_at = time.perf_counter()
            self._looking = asyncio.create_task(self._look_up())
            self._looking.add_done_callback(self._forget_failure)
        # Who gives up waiting must not take the answer away from the others.
        found = await asyncio.shield(self._looking)
        return sorted(found, key=lambda address: address != self._preferred)

    def prefer(self, address: str) -> None:
        """It answered: try it first next time."""
        self._preferred = address

    def close(self) -> None:
        """Ask no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look_up(self) -> list[str]:
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
        except UnicodeError as error:  # an empty part, or one longer than names have
            raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    def _forget_failure(self, looking: "asyncio.Task[list[str]]") -> None:
        if (looking.cancelled() or looking.exception()) and self._looking is looking:
            self._looking = None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
