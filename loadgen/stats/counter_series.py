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
    for nothing, where there are fewer or more of them.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._first_unix_s = math.inf
        self._totals: dict[str, float] = {}
        self._values: dict[tuple[str, _Labels], _Series] = {}
        self._created_s: dict[tuple[str, _Labels], float] = {}
        self._engines: set[_Labels] = set()

    def take(
        self,
        figures: Mapping[str, Sequence[Sample]],
        created: Iterable[Sample],
        at_unix_s: float | None = None,
    ) -> dict[str, float]:
        """The totals after one more page, of the figures that it tells. `at_unix_s` is its time by
        the clock that `created` goes by, None: by ours."""
        created_s = _latest(created)
        told = {figure: _joined(samples) for figure, samples in figures.items() if samples}
        if told and math.isinf(self._first_unix_s):
            self._first_unix_s = time.time() if at_unix_s is None else at_unix_s
        resets = False
        for figure, found in told.items():
            if figure not in self._totals:
                self._totals[figure] = math.fsum(each.value for each in found.values())
                continue
            names = _names_of_engines(figure, told)
            for labels, series in found.items():
                born_s = created_s.get((created_name(series.name), labels))
                before = self._values.get((figure, labels))
                if before is None:
                    rise = series.value if self._is_young(labels, born_s, names) else 0.0
                elif series.lines != before.lines:
                    rise = 0.0
                elif series.value < before.value or self._is_another(series, labels, born_s):
                    rise, resets = series.value, True
                else:
                    rise = series.value - before.value
                self._totals[figure] += rise
        self._remember(told, created_s)
        self.resets += resets
        return {figure: self._totals[figure] for figure in told}

    def _remember(
        self,
        told: Mapping[str, Mapping[_Labels, "_Series"]],
        created_s: Mapping[tuple[str, _Labels], float],
    ) -> None:
        for figure, found in told.items():
            self._values |= {(figure, labels): series for labels, series in found.items()}
            self._engines |= found.keys()
        self._created_s.update(created_s)

    def _is_another(self, series: "_Series", labels: _Labels, born_s: float | None) -> bool:
        """Whether it started again and has counted beyond what it had."""
        before_s = self._created_s.get((created_name(series.name), labels))
        if born_s is None or before_s is None:
            return False
        return born_s > before_s + LEAST_LIFE_S

    def _is_young(self, labels: _Labels, born_s: float | None, names: set[str]) -> bool:
        """Whether all that a series counts, which was not there before, was counted since."""
        engine = {(name, value) for name, value in labels if name in names}
        if any(engine <= known for known in self._engines):
            return True
        return born_s is not None and born_s >= self._first_unix_s


class _Series(NamedTuple):
    """So many lines of a page that have the same labels, added up."""

    name: str
    value: float
    lines: int


def _joined(samples: Sequence[Sample]) -> dict[_Labels, _Series]:
    found: dict[_Labels, _Series] = {}
    for name, labels, value in samples:
        key = frozenset(labels.items())
        before = found.get(key, _Series(name, 0.0, 0))
        found[key] = _Series(name, before.value + value, before.lines + 1)
    return found


def _names_of_engines(figure: str, told: Mapping[str, Mapping[_Labels, _Series]]) -> set[str]:
    """Labels that other figures have, too, tell engines apart, those of one what is counted."""
    others = {
        name
        for other, found in told.items()
        for labels in found
        for name, _ in labels
        if other != figure
    }
    return others or set.intersection(*({name for name, _ in labels} for labels in told[figure]))


def _latest(created: Iterable[Sample]) -> dict[tuple[str, _Labels], float]:
    found: dict[tuple[str, _Labels], float] = {}
    for name, labels, value in created:
        key = name, frozenset(labels.items())
        found[key] = max(value, found.get(key, value))
    return found
