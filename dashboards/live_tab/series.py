"""The swarm's figures over time, in a bounded number of rows however long it runs."""

from collections.abc import Sequence
from typing import NamedTuple

COLUMNS: tuple[str, ...] = (
    "at_s",
    "users",
    "requests_per_s",
    "failed_per_s",
    "output_tokens_per_s",
    "goodput_share",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "hit_rate",
    "external_hit_rate",
    "told_hit_rate",
    "kv_cache_usage",
    "running",
    "waiting",
    "loop_lag_p99_ms",
    "send_lateness_p99_ms",
)
MOST_ROWS = 1200
"""An hour of seconds is down-sampled to steps of 4 s, which leaves 900 rows."""

_LARGEST = frozenset(
    {"at_s", "ttft_p99_ms", "itl_p99_ms", "waiting", "loop_lag_p99_ms", "send_lateness_p99_ms"}
)
"""Of these the largest value of a step is kept, of all others the mean."""

Figures = tuple[float | None, ...]


class Rows(NamedTuple):
    """`rows` from number `first` on; a row of number n ends n + 1 steps after the start."""

    first: int
    rows: list[Figures]


class LiveSeries:
    """A row each `step_s` seconds; once there are too many, the step doubles and pairs merge."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self.step_s = 1
        self._most_rows = most_rows
        self._rows: list[Figures] = []
        self._pending: list[Figures] = []

    def add(self, figures: Figures) -> None:
        """Append one second's values in the order of `COLUMNS`."""
        self._pending.append(figures)
        if len(self._pending) < self.step_s:
            return
        self._rows.append(_merged(self._pending))
        self._pending = []
        if len(self._rows) > self._most_rows:
            self._halve()

    def since(self, number: int) -> Rows:
        """All rows from that number on."""
        first = min(number, len(self._rows))
        return Rows(first, self._rows[first:])

    def _halve(self) -> None:
        """Merge pairs; an odd row at the end waits for its partner."""
        whole = len(self._rows) // 2 * 2
        rest = self._rows[whole:]
        self._rows = [_merged(self._rows[at : at + 2]) for at in range(0, whole, 2)]
        self._pending = rest * self.step_s
        self.step_s *= 2


def short_of_whole(share: float | None) -> float | None:
    """The share as it is shown: only the whole is told as 1, however it is rounded."""
    return share if share is None or share >= 1 else min(share, 0.9999)


def _merged(rows: Sequence[Figures]) -> Figures:
    if len(rows) == 1:
        return rows[0]
    columns = zip(COLUMNS, zip(*rows, strict=True), strict=True)
    return tuple(_one(values, name in _LARGEST) for name, values in columns)


def _one(values: Sequence[float | None], largest: bool) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if largest else sum(known) / len(known)
