"""How far the clock of a worker's host is from that of the master's.

A run's times count from the moment that the master's wall clock shows at its start, so a worker
whose clock is ahead would send what is not due yet and date its rows too late.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gevent

from loadgen.swarm.process import is_forked

EAGER_ASKS, EAGER_S, CALM_S = 8, 0.05, 10.0
"""The first questions follow one another fast, as a swarm may start at once."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The master's clock shows `master_ahead_s` more than this one's, give or take `error_s`."""

    master_ahead_s: float
    error_s: float

    @property
    def is_certain(self) -> bool:
        """Whether the clocks differ at all; those of processes of one host never do."""
        return abs(self.master_ahead_s) > self.error_s

    def agrees_with(self, other: "ClockOffset") -> bool:
        """Whether both can be true of the same two clocks."""
        apart_s = abs(self.master_ahead_s - other.master_ahead_s)
        return apart_s <= self.error_s + other.error_s


class ClockAsker:
    """Asks the master for its time, on the hub of a worker.

    The answer stands for the middle between question and answer and is off by at most half of that
    time, however it was spent; the quickest of the last answers counts (Cristian 1989).
    """

    def __init__(
        self, ask: Callable[[dict[str, float]], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._offsets: deque[ClockOffset] = deque(maxlen=EAGER_ASKS)

    def ask_for_ever(self) -> None:
        """A few questions at once, then one now and then."""
        asked = 0
        while True:
            self._ask({"asked_unix_s": self._clock(), "pid": os.getpid() if is_forked() else 0})
            asked += 1
            gevent.sleep(EAGER_S if asked < EAGER_ASKS else CALM_S)

    def take(self, answer: Mapping[str, float]) -> None:
        """The master's answer: the question with `master_unix_s`."""
        now_s, asked_s = self._clock(), answer["asked_unix_s"]
        half_s = (now_s - asked_s) / 2
        if half_s < 0:
            return  # this clock was set back meanwhile
        found = ClockOffset(answer["master_unix_s"] - asked_s - half_s, half_s)
        # What does not agree with the newest is of a time before a clock was set.
        agreeing = [each for each in self._offsets if each.agrees_with(found)]
        self._offsets = deque((*agreeing, found), maxlen=EAGER_ASKS)

    @property
    def offset(self) -> ClockOffset | None:
        """The best that is known, None before the first answer."""
        return min(self._offsets, key=lambda offset: offset.error_s, default=None)
