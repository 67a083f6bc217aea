"""Two sides of a comparison, each of one run or of several repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadgen.compare.estimate import (
    LEAST_BATCHES,
    LEAST_SAMPLES,
    Estimate,
    ProportionEstimate,
    batch_count,
    estimate,
)
from loadgen.compare.interval import (
    Interval,
    RunSpread,
    Scale,
    between_repeats,
    degrees_left,
    mean_of_repeats,
    on_scale,
    within_runs,
)
from loadgen.compare.metrics import Statistic
from loadgen.compare.noise import Noise
from loadgen.compare.pairs import (
    Agreement,
    PairedBlocks,
    agreement_of,
    paired_blocks,
    send_the_same,
)
from loadgen.compare.run import ComparedRun


@dataclass(frozen=True)
class Sides:
    """`noise` is used where both sides have one run, which cannot show it, and for the new side
    alone where that has one."""

    base: tuple[ComparedRun, ...]
    new: tuple[ComparedRun, ...]
    noise: Noise | None = None

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """Those of the base, then the new ones."""
        return (*self.base, *self.new)

    @property
    def is_single_pair(self) -> bool:
        """Whether each side is one run."""
        return len(self.runs) == 2

    @property
    def seeds(self) -> tuple[list[str], list[str]]:
        """Of the base's runs, and of the new ones."""
        return [run.seed for run in self.base], [run.seed for run in self.new]

    @property
    def shows_spread(self) -> bool:
        """Whether repeats tell how runs differ from each other."""
        return degrees_left(self.seeds) > 0

    @cached_property
    def send_the_same(self) -> bool:
        """Whether both sides are one run each, of the same requests."""
        return self.is_single_pair and send_the_same(self.base[0], self.new[0])

    def paired(self, statistic: Statistic, scale: Scale) -> PairedBlocks | None:
        """Pair by pair, where both sides sent the same requests and there are enough of them."""
        base, new = self.base[0].data(statistic), self.new[0].data(statistic)
        if base is None or new is None or not self.send_the_same:
            return None
        return paired_blocks(base, new, statistic, scale)

    def agreement(self, statistic: Statistic) -> Agreement | None:
        """How many of the pairs of runs, or of the parts of a single pair, differ as the whole."""
        scale = scale_of(statistic)
        if self.is_single_pair:
            blocks = self.paired(statistic, scale)
            return None if blocks is None else blocks.agreement
        seeds = self.seeds
        if any(len(set(side)) < len(side) for side in seeds) or set(seeds[0]) != set(seeds[1]):
            return None
        figures = [
            {run.seed: value for run in side if (value := _value(run, statistic)) is not None}
            for side in (self.base, self.new)
        ]
        changes = [
            figures[1][seed] - value for seed, value in figures[0].items() if seed in figures[1]
        ]
        return agreement_of(np.asarray(changes), "runs")

    def samples(self, statistic: Statistic) -> tuple[int, int]:
        """Usable samples of each side, over its runs."""
        base, new = (sum(run.samples(statistic) for run in side) for side in (self.base, self.new))
        return base, new

    def figures(self, statistic: Statistic) -> tuple[float | None, float | None]:
        """Each side's figure, of what their difference is made of: that of the pairs, else the mean
        over its runs, of values and rates the geometric one. Where both sides have the same seeds,
        each of these counts once."""
        if (paired := self.paired(statistic, scale_of(statistic))) is not None:
            return paired.figures
        return self._figure(self.base, statistic), self._figure(self.new, statistic)

    def _figure(self, side: Sequence[ComparedRun], statistic: Statistic) -> float | None:
        values = [_value(run, statistic) for run in side]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) < len(values):
            return None
        is_log = scale_of(statistic) == "log" and min(known) > 0
        seeds = [run.seed if set(self.seeds[0]) == set(self.seeds[1]) else "" for run in side]
        weights = [1 / seeds.count(seed) for seed in seeds]
        mean = float(np.average(np.log(known) if is_log else known, weights=weights))
        return math.exp(mean) if is_log else mean

    def is_enough(self, statistic: Statistic) -> bool:
        """Whether an interval can be given, as far as the number of samples goes."""
        least = self.least_of_run(statistic)
        are_long = all(run.samples(statistic) >= least for run in self.runs)
        return are_long and min(self.samples(statistic)) >= LEAST_SAMPLES

    def least_of_run(self, statistic: Statistic) -> int:
        """Repeats do not show that a percentile of fewer is nearly the largest of each."""
        return max(LEAST_BATCHES, 1 if self.is_single_pair else statistic.least_values)

    def has_data(self, statistic: Statistic) -> bool:
        """Whether every run has more than a total."""
        return all(run.data(statistic) is not None for run in self.runs)

    def difference(self, statistic: Statistic, level: float, scale: Scale) -> Interval | None:
        """New less base; None without data, or where a figure has no logarithm."""
        if (paired := self.paired(statistic, scale)) is not None:
            return paired.interval(level, self._noise(statistic, scale))
        weights = [-1.0 / len(self.base)] * len(self.base) + [1.0 / len(self.new)] * len(self.new)
        estimates = self._estimates(self.runs, statistic, scale)
        if estimates is None:
            return None
        figures = [on_scale(each.value, scale) for each in estimates]
        base, new = figures[: len(self.base)], figures[len(self.base) :]
        spread = None if self.shows_spread else self._noise(statistic, scale)
        within = within_runs(estimates, weights, level, scale, spread)
        return _of_repeats(within, between_repeats(base, new, self.seeds, level), estimates)

    def new_alone(self, statistic: Statistic, level: float) -> Interval | None:
        """The new side's figure, in the metric's unit. The repeats of the base show how far a
        single new run may be off, where no noise does."""
        scale = scale_of(statistic)
        estimates = self._estimates(self.new, statistic, scale)
        if estimates is None:
            return None
        weights = [1.0 / len(self.new)] * len(self.new)
        spread = self._noise(statistic, scale) if len(self.new) == 1 else None
        interval = within_runs(estimates, weights, level, scale, spread)
        if spread is None:
            figures = [on_scale(each.value, scale) for each in estimates]
            others = self._base_figures(statistic, scale) if len(self.new) == 1 else []
            interval = _of_repeats(interval, mean_of_repeats(figures, level, others), estimates)
        return interval if scale == "plain" else interval.through(exponential)

    def _base_figures(self, statistic: Statistic, scale: Scale) -> list[float]:
        """Those of the base's runs; none where one has no logarithm."""
        estimates = self._estimates(self.base, statistic, scale) or []
        return [on_scale(each.value, scale) for each in estimates]

    def _noise(self, statistic: Statistic, scale: Scale) -> RunSpread | None:
        return None if self.noise is None else self.noise.spread(statistic, scale)

    def _estimates(
        self, runs: Sequence[ComparedRun], statistic: Statistic, scale: Scale
    ) -> list[Estimate] | None:
        if not self.is_enough(statistic) or not self.has_data(statistic):
            return None
        batches = batch_count(min(run.samples(statistic) for run in self.runs))
        data = [run.data(statistic) for run in runs]
        found = [estimate(each, statistic, batches) for each in data if each is not None]
        return found if scale == "plain" or all(each.value > 0 for each in found) else None


def _of_repeats(
    within: Interval, between: Interval | None, estimates: Sequence[Estimate]
) -> Interval:
    """What repeats show holds all there is, the error inside each run too. But rare things may be
    missing in all of them and yet not be impossible, so a proportion keeps the wider one."""
    if between is None:
        return within
    rare = any(isinstance(each, ProportionEstimate) for each in estimates)
    return between.widened(within) if rare else between


def scale_of(statistic: Statistic) -> Scale:
    """Times and rates differ by a factor, shares by points."""
    return "plain" if statistic.metric.form == "share" else "log"


def exponential(value: float) -> float:
    """e to the power of `value`, infinite where that is too much for a float."""
    return math.exp(value) if value < 700 else math.inf


def _value(run: ComparedRun, statistic: Statistic) -> float | None:
    data = run.data(statistic)
    if data is not None:
        return estimate(data, statistic, 1).value if data.samples else None
    total = run.totals.get(statistic.name)
    return total[0] if total else None
