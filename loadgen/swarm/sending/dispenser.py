"""Hands out what a process is to send, at once or when it is due."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from loadgen.client.token_times import LATE_S
from loadgen.context import Batch, Request
from loadgen.stats.clock import RunClock
from loadgen.workload.arrivals import Pacer

Unit = Request | Batch
Taken = tuple[Unit, float | None]
"""With when it was due: `time.perf_counter()` seconds, None in the closed loop."""
Due = list[tuple[Unit, float]]
MOST_HELD = 10_000
"""So many turns of a closed loop may wait for the ones before them; each holds its prompt."""


class SessionOver(Exception):
    """Nothing new may be sent: the swarm is stopping, or has sent all it was to send."""


class Dispenser:
    """The next unit for whoever is free; in an open loop a queue of those that are due.

    A turn of a conversation is held back until the one before it has ended, and nobody waits for
    it meanwhile. `on_release` is told, in an open loop, how many ms late a unit was released.
    """

    def __init__(
        self,
        units: Iterator[Unit],
        clock: RunClock,
        pacer: Pacer | None,
        on_release: Callable[[float], None],
    ) -> None:
        self._units = units
        self._clock = clock
        self._pacer = pacer
        self._on_release = on_release
        self._ready: asyncio.Queue[Taken | None] = asyncio.Queue()
        self._held: dict[str, deque[Taken]] = {}
        self._count_held = 0
        self._waiting = 0
        self._over = False
        self._ahead: tuple[Unit, float] | None = None
        self._position, self._due_s = -1, 0.0

    def take(self) -> Taken | None:
        """A unit that may go now, None where one has to be waited for. Raises SessionOver."""
        if self._over:
            raise SessionOver
        if self._pacer is None and self._ready.empty():
            self._draw()
        return None if self._ready.empty() else _or_over(self._ready.get_nowait())

    async def next(self) -> Taken:
        """The same, and this waits for it. Raises SessionOver."""
        if (taken := self.take()) is not None:
            return taken
        self._waiting += 1
        try:
            return _or_over(await self._ready.get())
        finally:
            self._waiting -= 1

    def end(self, unit: Unit) -> None:
        """A unit has ended, or will not be sent: the next turn of its conversation may go."""
        held = self._held.get(unit.session_id)
        if not held:
            self._held.pop(unit.session_id, None)
            return
        turn, due_at = held.popleft()
        self._count_held -= 1
        now = time.perf_counter()
        self._ready.put_nowait((turn, None if due_at is None else max(due_at, now)))

    def stop(self) -> tuple[Due, Due, Due]:
        """Hand out nothing from now on; returns what was due and nobody took, then the turns that
        were due before the ones before them had ended, and what this came too late to release: of
        more than `MOST_HELD` the first, as each takes time to make."""
        late = self._until(time.perf_counter() - LATE_S)  # timers are always a little late
        overdue = [] if self._over else list(islice(late, MOST_HELD))
        self._over = True
        left = []
        while not self._ready.empty():
            left.append(self._ready.get_nowait())
        held = [each for turns in self._held.values() for each in turns]
        self._held.clear()
        for _ in range(self._waiting):
            self._ready.put_nowait(None)
        return _due(left), _due(held), overdue

    async def pace(self) -> None:
        """Release units when they are due; returns at once in the closed loop."""
        while (following := self._look_ahead()) is not None:
            unit, due_at = following
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            if self._over:
                return
            self._ahead = None
            self._put(unit, due_at)
            self._on_release(max(0.0, time.perf_counter() - due_at) * 1000)

    def _look_ahead(self) -> tuple[Unit, float] | None:
        """What is due next and when; None at the end, and in the closed loop."""
        if self._pacer is None or self._ahead is not None:
            return self._ahead
        unit = next(self._units, None)
        if unit is not None:
            for _ in range(unit.index - self._position):
                self._due_s = self._pacer.next_s()
            self._position = unit.index
            self._ahead = unit, self._clock.to_perf(self._due_s)
        return self._ahead

    def _until(self, at: float) -> Iterator[tuple[Unit, float]]:
        while (following := self._look_ahead()) is not None and following[1] <= at:
            self._ahead = None
            yield following

    def _draw(self) -> None:
        """Have the next unit ready that may go; at the end nobody has anything to wait for."""
        while self._ready.empty() and self._count_held < MOST_HELD:
            unit = next(self._units, None)
            if unit is None:
                break
            self._put(unit, None)
        if self._ready.empty() and not self._count_held:
            raise SessionOver

    def _put(self, unit: Unit, due_at: float | None) -> None:
        """Ready, or held back behind the turns of its conversation."""
        if unit.session_id in self._held:
            self._held[unit.session_id].append((unit, due_at))
            self._count_held += 1
            return
        if unit.session_id:
            self._held[unit.session_id] = deque()
        self._ready.put_nowait((unit, due_at))


def _or_over(ready: Taken | None) -> Taken:
    if ready is None:
        raise SessionOver
    return ready


def _due(units: Iterable[Taken | None]) -> Due:
    return [(unit[0], unit[1]) for unit in units if unit is not None and unit[1] is not None]
