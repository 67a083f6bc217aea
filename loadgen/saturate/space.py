"""The loads among which the highest is looked for."""

import math
from dataclasses import dataclass
from typing import Literal

from loadgen.errors import UsageError

By = Literal["rate", "users"]
DIGITS = 3
"""Of a rate, so that what is shown is what was sent."""


@dataclass(frozen=True, slots=True)
class Space:
    """From `first` to `last` (None: without an end), in requests a second or in users. A bracket
    is narrow enough when its upper end is at most `tolerance` (0.05 is 5 %) above the lower one.
    Raises UsageError."""

    by: By
    first: float
    last: float | None
    tolerance: float

    def __post_init__(self) -> None:
        if not 0 < self.first < math.inf:
            raise UsageError(f"--from {self.first:g}: give a load above 0")
        if self.last is not None and not self.first < self.last < math.inf:
            raise UsageError(f"--to {self.last:g}: give more than --from, {self.first:g}")
        if not 0 < self.tolerance < 1:
            raise UsageError(f"--tolerance {100 * self.tolerance:g}%: give more than 0, below 100")
        for name, load in (("--from", self.first), ("--to", self.last)):
            if self.by == "users" and load is not None and load != round(load):
                raise UsageError(f"{name} {load:g}: give whole users")

    def beyond(self, load: float) -> float | None:
        """The next load to try above one that is met: twice as much, or the last."""
        if self.last is not None and load >= self.last:
            return None
        return min(2 * load, self.last or math.inf)

    def between(self, low: float, high: float) -> float | None:
        """The load to try inside a bracket: the geometric mean. None where it is narrow enough."""
        if high <= low * (1 + self.tolerance) * (1 + 1e-9):
            return None
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def steps(self, low: float, high: float) -> int:
        """How many loads are tried at most until a bracket is narrow enough."""
        return max(0, math.ceil(math.log2(math.log(high / low) / math.log(1 + self.tolerance))))

    def _rounded(self, load: float) -> float:
        if self.by == "users":
            return float(round(load))
        return round(load, DIGITS - 1 - math.floor(math.log10(load)))

    def said(self, load: float) -> str:
        """`6.2/s` or `12 users`."""
        if self.by == "rate":
            return f"{load:.4g}/s"
        return "1 user" if load == 1 else f"{load:.0f} users"
