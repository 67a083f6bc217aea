"""One node of the store: a server that speaks redis' protocol, with a deadline and a breaker."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from kv_tiers.store.placement import PREFIX, WIRE_BYTES

Clock = Callable[[], float]
SCAN_COUNT = 200
DEFAULT_PORT = 6379
MOST_ENTRIES, ENTRIES_AT_ONCE = 100_000, 1000
"""Of a journal: about so many are kept, and so many read in one call."""
JOURNAL_START = b"0-0"
"""The position before all entries."""
GARBAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What redis' client raises for answers that are not of its protocol, or not of the call."""


class NodeFailure(Exception):
    """A node did not do what it was asked, in time or at all; what it holds is unknown."""


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Entries behind a position, oldest first, each after its own position; `is_whole` where none
    between that position and the first of them has gone."""

    entries: tuple[tuple[bytes, bytes], ...]
    is_whole: bool = True


class CircuitBreaker:
    """Keeps calls from a node that has failed several times in a row, but for one in each pause."""

    def __init__(
        self, most_failures: int = 3, pause_s: float = 1.0, clock: Clock = time.monotonic
    ) -> None:
        self._most_failures, self._pause_s, self._clock = most_failures, pause_s, clock
        self._failures = 0
        self._next_trial_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are kept away, but for a trial."""
        return self._failures >= self._most_failures

    def admits(self) -> bool:
        """Whether a call may be made now; one that may is to be told of by `succeeded` or
        `failed`."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._next_trial_s:
            return False
        self._next_trial_s = now + self._pause_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._next_trial_s = self._clock() + self._pause_s


def _user_timeout(seconds: float) -> dict[int, int]:
    """How long bytes may stay unacknowledged or unsent, where the system knows such a time."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    return {} if option is None else {option: max(1, round(1000 * seconds))}


class StoreNode:
    """Bytes by name on the server at `host:port`. Every method raises NodeFailure, at the latest
    after `deadline_s`."""

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float = 1.0,
        connections: int = 8,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.address = address
        self.breaker = breaker or CircuitBreaker()
        self._deadline_s = deadline_s
        self._slots = asyncio.Semaphore(connections)
        host, port = split_address(address)
        pool = BlockingConnectionPool(
            max_connections=connections,
            timeout=deadline_s,
            host=host,
            port=port,
            socket_connect_timeout=deadline_s,
            # A call has its deadline already, and the client's own timeout of writing is an
            # `asyncio.wait_for`, which may lose a cancellation before Python 3.12.
            socket_timeout=None,
            # A connection that was given up with bytes unsent is closed once they are gone, which
            # a host that hangs would never let happen.
            socket_keepalive=True,
            socket_keepalive_options=_user_timeout(deadline_s),
            # A retry would outlive the deadline; a failed call is the breaker's to judge.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._client = Redis.from_pool(pool)

    async def get(self, name: bytes) -> bytes | None:
        """None where it has no such name."""
        async with self._call():
            found = await self._client.get(name)
        return found if isinstance(found, bytes) else None

    async def put(self, name: bytes, value: bytes) -> None:
        async with self._call():
            await self._client.set(name, value)

    async def exists(self, names: Sequence[bytes]) -> list[bool]:
        """Of each name, in one exchange."""
        if not names:
            return []
        async with self._call():
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.exists(name)
            found = await pipeline.execute()
        return [bool(each) for each in found]

    async def delete(self, name: bytes) -> None:
        async with self._call():
            await self._client.delete(name)

    async def names(self) -> AsyncIterator[list[bytes]]:
        """All that this store keeps on it, some at a time; what is written meanwhile may be
        missing, and some may come twice."""
        cursor = 0
        while True:
            async with self._call():
                cursor, found = await self._client.scan(
                    cursor, match=PREFIX + b"*", count=SCAN_COUNT
                )
                names = [name for name in found if isinstance(name, bytes)]
            yield [name for name in names if len(name) == WIRE_BYTES]
            if not int(cursor):
                return

    async def append(self, journal: bytes, entry: bytes) -> None:
        """Behind the entries that are there; the oldest go where there are too many."""
        async with self._call():
            await self._client.xadd(journal, {b"entry": entry}, maxlen=MOST_ENTRIES)

    async def behind(self, journal: bytes, position: bytes) -> JournalPart:
        """The next entries, at most ENTRIES_AT_ONCE."""
        async with self._call():
            found: Any = await self._client.xrange(journal, min=position, count=ENTRIES_AT_ONCE + 1)
            entries = [(at, fields.get(b"entry", b"")) for at, fields in found or ()]
        if entries and entries[0][0] == position:
            return JournalPart(tuple(entries[1:]))
        return JournalPart(tuple(entries), position == JOURNAL_START)

    async def aclose(self) -> None:
        await self._client.aclose(close_connection_pool=True)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        begun = False
        try:
            async with asyncio.timeout(self._deadline_s), self._slots:
                if not self.breaker.admits():
                    raise NodeFailure(f"node {self.address} has failed and is left for a while")
                begun = True
                yield
        except ResponseError as error:
            self.breaker.succeeded()  # it answers: it may only be full
            raise NodeFailure(f"node {self.address} refuses: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            if begun:  # a call that has only waited for others says nothing of the node
                self.breaker.failed()
            told = str(error) or f"no answer within {self._deadline_s:g} s"
            raise NodeFailure(f"node {self.address}: {told}") from error
        except GARBAGE as error:
            self.breaker.failed()
            raise NodeFailure(f"node {self.address} does not speak as redis: {error}") from error
        self.breaker.succeeded()


def split_address(address: str) -> tuple[str, int]:
    """Of `host:port` or `host`. Raises ValueError."""
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"{address!r} is no address of a node: give host:port")
    return host.strip("[]"), int(port or DEFAULT_PORT)
