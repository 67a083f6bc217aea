"""The deadlines of everything under way, and pauses between attempts.

A timer that fires late tells of this process, which did not run meanwhile: what came in time is
taken in first, and what takes steps of ours has as much time again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from typing import Generic, Protocol, TypeVar

from loadgen.client.token_times import LATE_S

FIRST_PAUSE_S = 1.0


class Expiring(Protocol):
    """What has a deadline."""

    def expire(self) -> None:
        """The time is over; must not raise."""


T = TypeVar("T", bound=Expiring)


class Deadlines(Generic[T]):
    """Many deadlines of which few are ever reached: setting and dropping one touches no timer.

    The timer is set to the earliest deadline known when it was set. All times are
    `time.perf_counter()` seconds. `catch_up` is called before anything expires: a loop that is
    late itself runs timers before it reads what came in time.
    """

    __slots__ = ("_catch_up", "_due", "_loop", "_next_at", "_timer")

    def __init__(self, catch_up: Callable[[], None] = lambda: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._catch_up = catch_up
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0

    def set(self, what: T, due_at: float) -> None:
        """Expire it then, or at once where that has passed; replaces its former deadline."""
        self._due[what] = due_at
        if self._timer is None or due_at < self._next_at:
            self._arm(due_at)

    def drop(self, what: T) -> None:
        """It has ended; may be repeated."""
        self._due.pop(what, None)

    def close(self) -> tuple[T, ...]:
        """Nothing expires any more; what is still under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending = tuple(self._due)
        self._due.clear()
        return pending

    def _arm(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_at = due_at
        self._timer = self._loop.call_later(max(due_at - time.perf_counter(), 0.0), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = time.perf_counter()
        if any(due_at <= now for due_at in self._due.values()):
            self._catch_up()
        for what in [what for what, due_at in self._due.items() if due_at <= now]:
            self.drop(what)
            what.expire()
        if self._due:
            self._arm(min(self._due.values()))


@contextlib.asynccontextmanager
async def time_limit(limit_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but where the loop comes late to the end of it, this goes on for as
    long as that was, at most `limit_s`: meanwhile nothing could be done. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    due_at = loop.time() + limit_s
    async with asyncio.timeout(None) as limit:

        def end() -> None:
            late_s = min(loop.time() - due_at, limit_s)
            limit.reschedule(loop.time() + (late_s if late_s > LATE_S else 0.0))

        timer = loop.call_at(due_at, end)
        try:
            yield
        finally:
            timer.cancel()


def pause_before_retry_s(retry_after: str, retries: int) -> float:
    """As long as the host asks for by `Retry-After`, in seconds or as a date (RFC 9110, 10.2.3);
    else a second, and twice as long each time."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return FIRST_PAUSE_S * 2.0**retries


def by_its_clock(retry_after: str, date: str) -> str:
    """`Retry-After` in seconds, where it is a date and the reply has one by the same clock."""
    with contextlib.suppress(ValueError, OverflowError):
        until, since = map(parsedate_to_datetime, (retry_after, date))
        return str(max(0, round(until.timestamp() - since.timestamp())))
    return retry_after
