"""A run's tally, with what was due in its warm-up kept apart from what counts."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from loadgen.record import BatchRecord, RequestRecord
from loadgen.stats.tally import Tally

Row = tuple[RequestRecord, Sequence[float]]
FINEST_S, GROWTH = 0.1, 1.05
"""Length of the first span of time, and by what factor each is longer than the one before."""


class Counts:
    """`counted` makes the figures of a run, `warmup` has what was due in its first `warmup_s`
    seconds. Where these are not known before the end (None), everything counts, and is kept by
    spans of time too, until `leave_out` says. Not thread-safe."""

    __slots__ = ("_spans", "counted", "warmup", "warmup_s")

    def __init__(self, warmup_s: float | None = 0.0) -> None:
        self.warmup_s = warmup_s
        self.counted, self.warmup = Tally(), Tally()
        self._spans: dict[int, Tally] = {}

    @property
    def whole(self) -> Tally:
        """Both together; the very tally that counts where nothing was left out."""
        return _sum([self.warmup, self.counted]) if self.warmup.requests else self.counted

    def add_many(self, rows: Sequence[Row]) -> None:
        """Count requests, each with the gaps between its tokens in milliseconds."""
        if self.warmup_s == 0:
            self.counted.add_many(rows)
        elif self.warmup_s is None:
            self.counted.add_many(rows)
            for span, part in _by_span(rows).items():
                self._span(span).add_many(part)
        else:
            for tally, early in ((self.warmup, True), (self.counted, False)):
                tally.add_many([row for row in rows if self._is_early(row[0]) is early])

    def add_batch(self, batch: BatchRecord) -> None:
        """Count one batch; its members are counted by `add_many`."""
        (self.warmup if self._is_early(batch) else self.counted).add_batch(batch)
        if self.warmup_s is None:
            self._span(_span_at(batch.scheduled_s)).add_batch(batch)

    def leave_out(self, until_s: float) -> None:
        """Now the warm-up is known: it ends with the span of time that `until_s` lies in."""
        first = math.ceil(_spans_until(until_s) - 1e-9)
        self.warmup_s = _begin_s(first)
        self.warmup = _sum(tally for span, tally in self._spans.items() if span < first)
        self.counted = _sum(tally for span, tally in self._spans.items() if span >= first)
        self._spans = {}

    def merge(self, other: "Counts") -> None:
        """Add all that `other` holds, which stays as it is."""
        self.counted.merge(other.counted)
        self.warmup.merge(other.warmup)
        for span, tally in other._spans.items():
            self._span(span).merge(tally)

    def take(self) -> "Counts":
        """Hand over the content and begin anew: the delta since the last call."""
        taken = Counts(self.warmup_s)
        taken.counted, taken.warmup = self.counted.take(), self.warmup.take()
        taken._spans, self._spans = self._spans, {}
        return taken

    def _is_early(self, record: RequestRecord | BatchRecord) -> bool:
        # To the microsecond, as in the CSV: whoever reads it back leaves out the same.
        return bool(self.warmup_s) and round(record.scheduled_s, 6) < (self.warmup_s or 0.0)

    def _span(self, span: int) -> Tally:
        return self._spans.setdefault(span, Tally())

    def to_wire(self) -> dict[str, Any]:
        """The content for msgpack or JSON, without what there is nothing of."""
        wire: dict[str, Any] = {"counted": self.counted.to_wire()}
        if self.warmup.requests:
            wire["warmup"] = self.warmup.to_wire()
        if self._spans:
            wire["spans"] = {str(span): tally.to_wire() for span, tally in self._spans.items()}
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """The content that `to_wire` was called on."""
        counts = cls()
        counts.counted = Tally.from_wire(wire["counted"])
        if "warmup" in wire:
            counts.warmup = Tally.from_wire(wire["warmup"])
        spans = wire.get("spans", {})
        counts._spans = {int(span): Tally.from_wire(each) for span, each in spans.items()}
        return counts


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _by_span(rows: Sequence[Row]) -> Mapping[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[_span_at(row[0].scheduled_s)].append(row)
    return found


def _span_at(due_s: float) -> int:
    return math.floor(_spans_until(due_s))


def _spans_until(at_s: float) -> float:
    """How many spans have passed by then, the last in part; the inverse of `_begin_s`."""
    return math.log1p(max(at_s, 0.0) * (GROWTH - 1) / FINEST_S) / math.log(GROWTH)


def _begin_s(span: int) -> float:
    return float(FINEST_S * (GROWTH**span - 1) / (GROWTH - 1))
