"""Whether a run's clients were fast enough, however long it runs, in a space that does not grow."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.stats.self_watch import ClientSample

KEPT = 60
"""So many samples are kept for each process, for those who look at the last seconds."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """Whether the client was saturated and, if so, a sentence saying why."""

    saturated: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SaturationRule:
    """When a run's figures are not to be trusted.

    A second is bad when the p99 of loop lag or of send lateness is above `max_lag_ms`. A run is
    saturated when in any process more than `share_of_seconds` of its seconds, and at least
    `least_seconds`, were bad.
    """

    max_lag_ms: float = 100.0
    share_of_seconds: float = 0.1
    least_seconds: int = 2

    def judge(self, samples: Iterable[ClientSample]) -> Saturation:
        """The verdict on samples, one per second and process, in any order."""
        health = ClientHealth(self)
        for sample in samples:
            health.add(sample)
        return health.verdict()


@dataclass(slots=True)
class _Lateness:
    """The seconds of one process."""

    seconds: int = 0
    bad: int = 0
    worst_ms: float = 0.0

    def add(self, ms: float, max_ms: float) -> None:
        self.seconds += 1
        self.bad += ms > max_ms
        self.worst_ms = max(self.worst_ms, ms)

    def is_bad(self, rule: SaturationRule) -> bool:
        return self.bad >= rule.least_seconds and self.bad > rule.share_of_seconds * self.seconds


class ClientHealth:
    """What the samples of all processes of a run say by one rule, and the last of them.

    Its size depends on the number of processes alone.
    """

    def __init__(self, rule: SaturationRule | None = None) -> None:
        self.recent: deque[ClientSample] = deque()
        self._rule = rule or SaturationRule()
        self._count = 0
        self._processes: dict[str, _Lateness] = {}

    def add(self, sample: ClientSample) -> None:
        """Take in one second of one process; of several they may come out of order."""
        late_ms = max(sample.loop_lag_p99_ms, sample.send_lateness_p99_ms or 0.0)
        lateness = self._processes.setdefault(sample.process, _Lateness())
        lateness.add(late_ms, self._rule.max_lag_ms)
        self._count += 1
        self.recent.append(sample)
        while len(self.recent) > KEPT * len(self._processes):
            self.recent.popleft()

    @property
    def count(self) -> int:
        """How many samples were added."""
        return self._count

    def since(self, count: int) -> list[ClientSample]:
        """Those after the first `count`, as far as they are kept."""
        new = min(self._count - count, len(self.recent))
        return [self.recent[at] for at in range(-new, 0)]

    def verdict(self) -> Saturation:
        """Whether the client was fast enough so far."""
        alone = len(self._processes) == 1
        told = [
            self._reason("the client" if alone else f"process {process}", lateness)
            for process, lateness in sorted(self._processes.items())
            if lateness.is_bad(self._rule)
        ]
        return Saturation(bool(told), " ".join(told))

    def _reason(self, who: str, lateness: _Lateness) -> str:
        return (
            f"{who} was late by more than {self._rule.max_lag_ms:g} ms in {lateness.bad} of "
            f"{lateness.seconds} seconds (worst {lateness.worst_ms:.0f} ms):"
            " use more processes or less load."
        )
