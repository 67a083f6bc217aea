"""When the mock server's streams speak: one heap of due times and one waiting turn of the loop."""

import asyncio
import heapq
import time
from collections.abc import Callable

SPIN_NS = 3_000_000
"""The loop's timers are a millisecond coarse: the last of a wait is spent asking the clock."""
BURST = 8
"""Events written before the loop may look at what has arrived: a receipt is the truth as well."""


class Speech:
    """A reply under way: `spoken` of its events are written."""

    __slots__ = ("reply", "speak", "spoken")

    def __init__(self, speak: Callable[["Speech", int], int], reply: int) -> None:
        self.speak, self.reply, self.spoken = speak, reply, 0


class Pace:
    """Lets each speech have its say when it is due, the earliest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[int, int, Speech]] = []
        self._alarm: asyncio.Handle | None = None
        self._alarm_ns = 0

    def add(self, due_ns: int, speech: Speech) -> None:
        """Have `speech` speak at that time of `time.perf_counter_ns()`."""
        heapq.heappush(self._due, (due_ns, speech.reply, speech))
        if self._alarm is None or due_ns < self._alarm_ns:
            self._wait()

    def _wait(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._due:
            return
        self._alarm_ns = self._due[0][0]
        ahead_ns = self._alarm_ns - time.perf_counter_ns()
        if ahead_ns < SPIN_NS:
            self._alarm = self._loop.call_soon(self._turn)
        else:
            self._alarm = self._loop.call_later((ahead_ns - SPIN_NS / 2) / 1e9, self._turn)

    def _turn(self) -> None:
        self._alarm = None
        due = self._due
        for _ in range(BURST):
            if not due or due[0][0] > time.perf_counter_ns():
                break
            due_ns, reply, speech = due[0]
            next_ns = speech.speak(speech, due_ns)
            if next_ns:
                heapq.heapreplace(due, (next_ns, reply, speech))
            else:
                heapq.heappop(due)
        self._wait()
