"""How fast a link is, over time, and when it is through with some bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

BYTES_PER_MBIT = 125_000
BURST_S = 0.005
"""An idle link has saved the bytes of so many seconds at most."""


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Bytes a second by time since the start: each of `rates` from its second on. The last one
    holds for good. Raises ValueError for what cannot be."""

    seconds: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates or self.seconds[0] != 0:
            raise ValueError("a schedule begins at second 0")
        if any(not later > earlier for earlier, later in pairwise(self.seconds)):
            raise ValueError("the seconds of a schedule go up")
        if any(not 0 <= rate < math.inf for rate in self.rates):
            raise ValueError("a rate is 0 or more, and finite")
        if not self.rates[-1] > 0:
            raise ValueError("the last rate holds for good: give one above 0")

    @classmethod
    def fixed(cls, rate_mbit: float) -> Self:
        """Megabits, of 10^6, a second."""
        return cls((0.0,), (rate_mbit * BYTES_PER_MBIT,))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Lines of `seconds rate_mbit`, comments after a #. Raises ValueError, OSError."""
        rows: list[tuple[float, float]] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = line.partition("#")[0].split()
            try:
                if words:
                    seconds, rate_mbit = map(float, words)
                    rows.append((seconds, rate_mbit * BYTES_PER_MBIT))
            except ValueError:
                raise ValueError(f"line {number} of {path} is not `seconds rate_mbit`") from None
        return cls(tuple(row[0] for row in rows), tuple(row[1] for row in rows))

    def through_s(self, begin_s: float, size: float) -> float:
        """When so many bytes that begin then are over."""
        at = begin_s
        for rate, end in zip(self.rates, (*self.seconds[1:], math.inf), strict=True):
            if at >= end:
                continue
            if size <= rate * (end - at):
                return at + (size / rate if rate else 0.0)
            size -= rate * (end - at)
            at = end
        return at

    def bytes_between(self, begin_s: float, end_s: float) -> float:
        """What a link that is never idle sends."""
        ends: Sequence[float] = (*self.seconds[1:], math.inf)
        return sum(
            rate * max(0.0, min(end, end_s) - max(begin, begin_s))
            for begin, end, rate in zip(self.seconds, ends, self.rates, strict=True)
        )


class TokenBucket:
    """One sender, piece after piece. Times are seconds since its start, on whatever clock."""

    def __init__(self, schedule: RateSchedule, burst_s: float = BURST_S) -> None:
        self._schedule, self._burst_s = schedule, burst_s
        self._free_s = 0.0

    def send(self, now_s: float, size: int) -> float:
        """When a piece that is given now is through: never before now."""
        begin_s = max(self._free_s, now_s - self._burst_s, 0.0)
        self._free_s = self._schedule.through_s(begin_s, size)
        return max(self._free_s, now_s)
