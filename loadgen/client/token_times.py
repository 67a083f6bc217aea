"""Whose clock timed the tokens, and how many of their times are not their own."""

import time
from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import astuple, dataclass, replace
from typing import Any

LATE_S = 0.02
"""Of reading: the double of `LOOK_S`, as where nothing arrives that is how often it is looked."""
LOOK_S = 0.01
KEPT_LATE = 65_536


@dataclass(slots=True)
class TokenTimes:
    """What the clients of a process, or of all, read; see the columns of `client_metrics.csv`."""

    tokens: int = 0
    shared: int = 0
    late: int = 0
    late_ms: float = 0.0
    """The sum over those that are late."""
    reads: int = 0
    unstamped_reads: int = 0
    full_reads: int = 0
    late_looks: int = 0

    def __add__(self, other: "TokenTimes") -> "TokenTimes":
        return TokenTimes(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "TokenTimes") -> "TokenTimes":
        return TokenTimes(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def late_mean_ms(self) -> float | None:
        """How long late ones may have lain unread; None where none are late."""
        return self.late_ms / self.late if self.late else None

    def figures(self) -> dict[str, Any]:
        """`token_times` of a summary."""

        def share(part: int, whole: int) -> float | None:
            return part / whole if whole else None

        return {
            "clock": self.clock,
            "tokens": self.tokens,
            "shared_share": share(self.shared, self.tokens),
            "late_share": share(self.late, self.tokens),
            "late_mean_ms": self.late_mean_ms,
            "unstamped_share": share(self.unstamped_reads, self.reads),
            "full_share": share(self.full_reads, self.reads),
        }

    @property
    def clock(self) -> str | None:
        """Of most reads; None where nothing was read."""
        if not self.reads and not self.tokens:
            return None
        return "kernel" if 2 * self.unstamped_reads < self.reads else "event loop"


class ReadLog:
    """What one client has read, and when it came late to that; lives on the loop.

    Bytes of a read have lain there at most since sockets were last looked at, all of which had been
    read then. With the kernel's time a token that was read late still has its own, unless others
    were read with it; with the event loop's none has.
    """

    def __init__(self) -> None:
        self.counts = TokenTimes()
        self._taken = TokenTimes()
        self._emptied_at = time.perf_counter()
        self._late: deque[tuple[float, float]] = deque(maxlen=KEPT_LATE)

    def looked(self, polled_at: float, read_at: float, emptied_at: float) -> None:
        """Sockets were looked at, and read until `read_at`: all that had come at `emptied_at`."""
        if polled_at - self._emptied_at > LATE_S:
            self._late.append((self._emptied_at, read_at))
            self.counts.late_looks += 1
        self._emptied_at = max(self._emptied_at, emptied_at)

    def count(self, times: "array[float]") -> None:
        """The times of a reply's tokens, in their order."""
        self.counts.tokens += len(times)
        self.counts.shared += _shared(times)
        if not times or not self._late or self._late[-1][1] < times[0]:
            return
        is_stamped = self.counts.clock == "kernel"
        end = len(times)
        for since, until in reversed(self._late):
            if until < times[0]:
                break
            first, last = bisect_right(times, since), min(bisect_right(times, until), end)
            part = times[first:last]
            late = _shared(part) if is_stamped else len(part)
            self.counts.late += late
            self.counts.late_ms += late * (until - since) * 1000
            end = min(end, first)

    def take(self) -> TokenTimes:
        """What was counted since the last call."""
        before, self._taken = self._taken, replace(self.counts)
        return self._taken - before


def _shared(times: "array[float]") -> int:
    return len(times) - len(set(times))
