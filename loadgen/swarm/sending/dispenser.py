"""Hands out what a process is to send, at once or when it is due."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from loadgen.stats.clock import RunClock
from loadgen.workload.arrivals import Pacer


class Unit(Protocol):
    """A request or a batch: it has a place in the swarm's sequence of such."""

    @property
    def index(self) -> int:
        """Its place, from 0."""


U = TypeVar("U", bound=Unit)


class SessionOver(Exception):
    """Nothing new may be sent: the swarm is stopping, or has sent all it was to send."""


class Dispenser(Generic[U]):
    """The next unit for whoever is free; in an open loop a queue of those that are due.

    `on_release` is told, in an open loop, how many ms late a unit was released.
    """

    def __init__(
        self,
        units: Iterator[U],
        clock: RunClock,
        pacer: Pacer | None,
        on_release: Callable[[float], None],
    ) -> None:
        self._units = units
        self._clock = clock
        self._pacer = pacer
        self._on_release = on_release
        self._due: asyncio.Queue[tuple[U, float] | None] = asyncio.Queue()
        self._waiting = 0
        self._over = False

    async def next(self) -> tuple[U, float | None]:
        """A unit and when it was due (`time.perf_counter()` seconds; None in the closed loop).

        In an open loop this waits until one is due. Raises SessionOver.
        """
        if self._over:
            raise SessionOver
        if self._pacer is None:
            unit = next(self._units, None)
            if unit is None:
                raise SessionOver
            return unit, None
        self._waiting += 1
        try:
            due = await self._due.get()
        finally:
            self._waiting -= 1
        if due is None:
            raise SessionOver
        return due

    def stop(self) -> list[tuple[U, float]]:
        """Hand out nothing from now on; returns what was due and nobody took."""
        self._over = True
        left = []
        while not self._due.empty():
            due = self._due.get_nowait()
            if due is not None:
                left.append(due)
        for _ in range(self._waiting):
            self._due.put_nowait(None)
        return left

    async def pace(self) -> None:
        """Release units when they are due; returns at once in the closed loop."""
        if self._pacer is None:
            return
        position = -1
        due_s = 0.0
        for unit in self._units:
            for _ in range(unit.index - position):
                due_s = self._pacer.next_s()
            position = unit.index
            due_at = self._clock.to_perf(due_s)
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            if self._over:
                return
            self._due.put_nowait((unit, due_at))
            self._on_release(max(0.0, time.perf_counter() - due_at) * 1000)
