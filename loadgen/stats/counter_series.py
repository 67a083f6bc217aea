"""Totals of counters that several engines tell on one page, each under labels of its own."""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from loadgen.stats.prometheus import Sample

MODEL_LABELS = ("model_name", "model", "model_id")
"""What engines and routers call the label that says of which model a series is."""
TOTAL, CREATED = "_total", "_created"
LEAST_LIFE_S = 1.0
"""Series of one engine differ by less in the moment from which they count, wherever it is told."""
_ENDING = re.compile(r"_(total|sum|count|bucket)$")
_Labels = frozenset[tuple[str, str]]


def created_name(name: str) -> str:
    """The metric that says since when a counter, or a part of a histogram, counts."""
    return _ENDING.sub("", name) + CREATED


class CounterTotals:
    """A total begins with what the first page shows, and grows by what each series does.

    A series that vanishes keeps what it had. One that appears counts from zero where its engine is
    known already, or it is younger than the first page; else it brings its history along. One that
    starts again counts from zero, and `resets` then says on how many pages that happened. Series
    of equal labels, as where a router joins pages, are one; what it rose by is unknown, and taken
    for nothing, where there are fewer or more of them, or where its value was not known before.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._first_unix_s = math.inf
        self._totals: dict[str, float] = {}
        self._values: dict[tuple[str, _Labels], _Series] = {}
        self._unknown: set[tuple[str, _Labels]] = set()
        """Series that were there, and never had a value."""
        self._engines: set[_Labels] = set()

    def take(
        self,
        figures: Mapping[str, Sequence[Sample]],
        created: Iterable[Sample],
        at_unix_s: float | None = None,
    ) -> dict[str, float]:
        """The totals after one more page, of the figures that it tells. `at_unix_s` is its time by
        the clock that `created` goes by, None: by ours."""
        in_order = sorted(created, key=lambda each: each.value)
        created_s = {(each.name, _labels(each)): each.value for each in in_order}
        known = ((name, [s for s in samples if s.is_known]) for name, samples in figures.items())
        told = {name: _joined(samples, created_s) for name, samples in known if samples}
        if told and math.isinf(self._first_unix_s):
            self._first_unix_s = time.time() if at_unix_s is None else at_unix_s
        resets = False
        for figure, found in told.items():
            if figure not in self._totals:
                self._totals[figure] = math.fsum(each.value for each in found.values())
                continue
            names = _names_of_engines(figure, told)
            for labels, series in found.items():
                before = self._values.get((figure, labels))
                if (figure, labels) in self._unknown:
                    rise = 0.0
                elif before is None:
                    rise = series.value if self._is_young(labels, series.born_s, names) else 0.0
                elif series.lines != before.lines:
                    rise = 0.0
                elif series.value < before.value or series.born_s > before.born_s + LEAST_LIFE_S:
                    rise, resets = series.value, True
                else:
                    rise = series.value - before.value
                self._totals[figure] += rise
        for figure, samples in figures.items():
            self._unknown |= {(figure, _labels(each)) for each in samples if not each.is_known}
        for figure, found in told.items():
            self._values |= {(figure, labels): series for labels, series in found.items()}
            self._engines |= found.keys()
        self._unknown -= self._values.keys()
        self.resets += resets
        return {figure: self._totals[figure] for figure in told}

    def _is_young(self, labels: _Labels, born_s: float, names: set[str]) -> bool:
        """Whether all that a series counts, which was not there before, was counted since."""
        engine = {(name, value) for name, value in labels if name in names}
        return any(engine <= known for known in self._engines) or born_s >= self._first_unix_s


class _Series(NamedTuple):
    """So many lines of a page that have the same labels, added up; `born_s` is NaN where it is not
    told."""

    value: float
    lines: int
    born_s: float


def _labels(sample: Sample) -> _Labels:
    return frozenset(sample.labels.items())


def _joined(
    samples: Sequence[Sample], created_s: Mapping[tuple[str, _Labels], float]
) -> dict[_Labels, _Series]:
    found: dict[_Labels, _Series] = {}
    for each in samples:
        labels = _labels(each)
        born_s = created_s.get((created_name(each.name), labels), math.nan)
        value, lines, _ = found.get(labels, (0.0, 0, born_s))
        found[labels] = _Series(value + each.value, lines + 1, born_s)
    return found


def _names_of_engines(figure: str, told: Mapping[str, Mapping[_Labels, _Series]]) -> set[str]:
    """Labels that other figures have, too, tell engines apart, those of one what is counted."""
    others = (labels for other, found in told.items() if other != figure for labels in found)
    named = {name for labels in others for name, _ in labels}
    return named or set.intersection(*({name for name, _ in labels} for labels in told[figure]))
