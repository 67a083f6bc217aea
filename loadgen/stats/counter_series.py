"""Totals of counters that several engines tell on one page, each under labels of its own."""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from loadgen.stats.prometheus import Sample

MODEL_LABEL = "model_name"
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
    starts again counts from zero, and `resets` then says on how many pages that happened.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._first_unix_s = time.time()
        self._totals: dict[str, float] = {}
        self._values: dict[tuple[str, _Labels], float] = {}
        self._created_s: dict[tuple[str, _Labels], float] = {}
        self._engines: set[_Labels] = set()

    def take(
        self, figures: Mapping[str, Sequence[Sample]], created: Iterable[Sample]
    ) -> dict[str, float]:
        """The totals after one more page, of the figures that it tells."""
        created_s = {(each.name, _labels(each)): each.value for each in created}
        told = [sample for samples in figures.values() for sample in samples]
        shared = set.intersection(*(set(sample.labels) for sample in told)) if told else set()
        resets = False
        for figure, samples in figures.items():
            if figure not in self._totals and samples:
                self._totals[figure] = math.fsum(sample.value for sample in samples)
                continue
            for sample in samples:
                born_s = created_s.get((created_name(sample.name), _labels(sample)))
                before = self._values.get((figure, _labels(sample)))
                if before is None:
                    rise = sample.value if self._is_young(sample, born_s, shared) else 0.0
                elif sample.value < before or self._is_another(sample, born_s):
                    rise, resets = sample.value, True
                else:
                    rise = sample.value - before
                self._totals[figure] += rise
        self._remember(figures, created_s)
        self.resets += resets
        return {figure: self._totals[figure] for figure, samples in figures.items() if samples}

    def _remember(
        self,
        figures: Mapping[str, Sequence[Sample]],
        created_s: Mapping[tuple[str, _Labels], float],
    ) -> None:
        for figure, samples in figures.items():
            for sample in samples:
                self._values[figure, _labels(sample)] = sample.value
                self._engines.add(_labels(sample))
        self._created_s.update(created_s)

    def _is_another(self, sample: Sample, born_s: float | None) -> bool:
        """Whether it started again and has counted beyond what it had."""
        before_s = self._created_s.get((created_name(sample.name), _labels(sample)))
        if born_s is None or before_s is None:
            return False
        return born_s > before_s + LEAST_LIFE_S

    def _is_young(self, sample: Sample, born_s: float | None, shared: set[str]) -> bool:
        """Whether all that a series counts, which was not there before, was counted since."""
        if born_s is not None:
            return born_s >= self._first_unix_s
        # Labels that all series have tell engines apart, those that some have what is counted.
        engine = {(name, sample.labels[name]) for name in shared}
        return any(engine <= known for known in self._engines)


def _labels(sample: Sample) -> _Labels:
    return frozenset(sample.labels.items())
