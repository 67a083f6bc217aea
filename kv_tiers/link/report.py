"""What clients had of a link: how long their exchanges took, and how evenly it was shared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

MOST_EXCHANGES = 100_000
"""Of a client: of more, the first ones count."""


@dataclass(slots=True)
class ClientFigures:
    """An exchange begins with the first byte from the client, and is over with the last one to it
    before the client sends again."""

    name: str
    up_bytes: int = 0
    down_bytes: int = 0
    exchanges_s: list[float] = field(default_factory=list)
    wanted_s: float = 0.0
    """Time in which something of it was on its way."""
    _begun_s: float | None = None
    _last_s: float | None = None
    _under_way: int = 0
    _since_s: float = 0.0

    def arrived(self, at_s: float, size: int, is_up: bool) -> None:
        """Bytes have come to the link."""
        if self._under_way == 0:
            self._since_s = at_s
        self._under_way += size
        if is_up and (self._begun_s is None or self._last_s is not None):
            self._close()
            self._begun_s = at_s

    def delivered(self, at_s: float, size: int, is_up: bool) -> None:
        """Bytes have left it."""
        self.gone(at_s, size)
        if is_up:
            self.up_bytes += size
        else:
            self.down_bytes += size
            self._last_s = at_s

    def gone(self, at_s: float, size: int) -> None:
        """Bytes are no longer on their way, whether they have arrived or nobody waits for them."""
        self._under_way -= size
        if size and self._under_way == 0:
            self.wanted_s += at_s - self._since_s

    def times_s(self) -> list[float]:
        """Of all exchanges, the last one too, sorted."""
        last = [] if (took := self._took_s()) is None else [took]
        return sorted([*self.exchanges_s, *last])

    def _close(self) -> None:
        took = self._took_s()
        if took is not None and len(self.exchanges_s) < MOST_EXCHANGES:
            self.exchanges_s.append(took)
        self._last_s = None

    def _took_s(self) -> float | None:
        if self._begun_s is None or self._last_s is None:
            return None
        return self._last_s - self._begun_s


@dataclass(frozen=True, slots=True)
class LinkReport:
    """`utilisation` of each direction: bytes sent over those possible between first and last."""

    clients: tuple[ClientFigures, ...]
    utilisation_up: float
    utilisation_down: float

    @property
    def jain(self) -> float | None:
        """Of the bytes a second that clients had while they waited for any."""
        return jain_index(
            [(each.up_bytes + each.down_bytes) / each.wanted_s for each in self._served]
        )

    @property
    def lines(self) -> list[str]:
        """A table, and the figures of all."""
        head = f"{'client':<14}{'exchanges':>10}{'MB':>10}{'p50 ms':>10}{'p99 ms':>10}"
        jain = "-" if self.jain is None else f"{self.jain:.3f}"
        return [
            head,
            *map(_line, self.clients),
            f"Jain's index {jain}, utilisation up {self.utilisation_up:.1%},"
            f" down {self.utilisation_down:.1%}",
        ]

    @property
    def _served(self) -> list[ClientFigures]:
        return [each for each in self.clients if each.wanted_s > 0]


def jain_index(rates: Sequence[float]) -> float | None:
    """1 where all have the same, 1/n where one has all; None of none (Jain and others, 1984)."""
    squares = len(rates) * sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / squares if squares else None


def percentile(values: Sequence[float], share: float) -> float:
    """Between neighbours, by numpy's rule; NaN of none."""
    return float(np.quantile(values, share)) if values else math.nan


def _line(client: ClientFigures) -> str:
    times = client.times_s()
    megabytes = (client.up_bytes + client.down_bytes) / 1e6
    return (
        f"{client.name:<14}{len(times):>10}{megabytes:>10.2f}"
        f"{_ms(percentile(times, 0.5)):>10}{_ms(percentile(times, 0.99)):>10}"
    )


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1000 * seconds:.1f}"
