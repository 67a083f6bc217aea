"""The same requests on both sides, set against each other pair by pair.

What a request is worth, its length and what the cache held of it, is on both sides and cancels
out; what is left is how the sides differ. Requests that follow each other are alike in that too,
so pairs are put into blocks in the order of the stream: the batches of a batched run, else 5 to 30
consecutive parts. Each block gives one difference, and their spread says how far the whole is off.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.compare.comparability import SAME_REQUESTS, differences
from loadgen.compare.estimate import (
    LEAST_SAMPLES,
    batch_count,
    estimate,
    variance_of_mean,
)
from loadgen.compare.interval import Interval, RunSpread, Scale, on_scale, quantile_of_t
from loadgen.compare.metrics import Statistic
from loadgen.compare.run import ComparedRun
from loadgen.compare.series import Ratio, RequestMarks, Series, Values
from loadgen.runs.columns import Floats, Indices

LEAST_COMMON, NEARLY_ALL = 0.5, 0.9
"""Of the larger side's requests, that must be on both. Users who wait for replies send fewer to a
slower server: where not nearly all are on both sides, a change is that of those that are."""
LEAST_BATCHES, LEAST_BLOCKS, MOST_BLOCKS = 3, 5, 30
MEDIAN = 0.5
"""That of a batch is near that of all; a batch's p95 is its highest of a few, another figure."""


def send_the_same(base: ComparedRun, new: ComparedRun) -> bool:
    """Whether it is proven: alike in seed, texts and workload, and each request that both sent has
    the same context, question and tokens."""
    if base.facts is None or new.facts is None:
        return False
    if any(
        difference.name.partition(".")[0] not in SAME_REQUESTS
        for difference in differences(base.facts, new.facts)
    ):
        return False
    common = base.prompts.keys() & new.prompts.keys()
    most = max(len(base.prompts), len(new.prompts))
    if not common or len(common) < LEAST_COMMON * most:
        return False
    return all(base.prompts[number] == new.prompts[number] for number in common)


@dataclass(frozen=True, slots=True)
class PairedBlocks:
    """One difference, new less base, for each block of pairs, on the scale of the contrast;
    `estimate` is that of all, made of the `figures` of so many `samples` of both sides, and
    `freedom` is in degrees that of the differences' variance."""

    differences: Floats
    estimate: float
    pairs: int
    unit: str
    """`batches`, or `parts` of the run."""
    freedom: float
    figures: tuple[float, float]
    samples: tuple[int, int]

    def interval(self, level: float, spread: RunSpread | None = None) -> Interval:
        """By Student's t; `spread` adds what runs differ by beyond what happens inside them."""
        t = quantile_of_t(level, self.freedom)
        square = t * t * variance_of_mean(self.differences)
        if spread is not None:
            square += 2 * (quantile_of_t(level, spread.freedom) * spread.deviation) ** 2
        half = float(np.sqrt(square))
        return Interval(self.estimate, self.estimate - half, self.estimate + half)

    @property
    def agreement(self) -> "Agreement | None":
        """Of the blocks."""
        return agreement_of(self.differences, self.unit)


@dataclass(frozen=True, slots=True)
class Agreement:
    """`lower` and `higher` of `count` pairs of `unit`; the others are alike."""

    lower: int
    higher: int
    count: int
    unit: str


def agreement_of(differences: Floats, unit: str) -> Agreement | None:
    """None without any."""
    if not len(differences):
        return None
    lower, higher = int((differences < 0).sum()), int((differences > 0).sum())
    return Agreement(lower, higher, len(differences), unit)


def paired_blocks(
    base: Series, new: Series, statistic: Statistic, scale: Scale
) -> PairedBlocks | None:
    """None where too few requests are on both sides, or a figure has no logarithm. Rare things may
    be missing in every block, so a proportion is not decided by its blocks."""
    if base.marks is None or new.marks is None or (isinstance(base, Ratio) and base.counts):
        return None
    common, at_base, at_new = _common(base.marks, new.marks)
    if len(common) < LEAST_COMMON * max(len(base.marks.number), len(new.marks.number), 1):
        return None
    batch = base.marks.batch[at_base]
    if len(common) < NEARLY_ALL * max(len(base.marks.number), len(new.marks.number)):
        base, new = base.taken(at_base), new.taken(at_new)
        at_base = at_new = np.arange(len(common))
    is_batched = len(np.unique(batch)) > 1
    if not is_batched and len(common) < LEAST_SAMPLES:
        return None
    quantile = statistic.quantile
    if quantile is not None and len(common) * min(quantile, 1 - quantile) < LEAST_BLOCKS:
        return None  # a percentile that too few pairs reach beyond
    parts = min(batch_count(len(common)), len(common))
    places = np.array_split(np.arange(len(common)), parts)
    blocks = list(_batches(batch)) if is_batched else places
    if len(blocks) < (LEAST_BATCHES if is_batched else LEAST_BLOCKS):
        return None
    whole = _figure(base, statistic), _figure(new, statistic)
    if scale == "log" and min(whole) <= 0:
        return None
    first, last = (on_scale(each, scale) for each in whole)
    sides = (base, at_base), (new, at_new)
    freedom = len(blocks) - 1.0
    if quantile is None or (is_batched and quantile == MEDIAN):
        before, after = (_of_blocks(side, at, blocks, statistic, scale) for side, at in sides)
    else:
        before, after = (_pulls(side, at, blocks, quantile, scale) for side, at in sides)
        before, after = before + first, after + last
        freedom = min(freedom, *(_clusters(side, quantile) - 1 for side, _ in sides))
    if not np.isfinite(before).all() or not np.isfinite(after).all():
        return None
    return PairedBlocks(
        after - before,
        last - first,
        len(common),
        "batches" if is_batched else "parts",
        max(1.0, freedom),
        whole,
        (base.samples, new.samples),
    )


def _of_blocks(
    series: Series, at: Indices, blocks: Sequence[Indices], statistic: Statistic, scale: Scale
) -> Floats:
    """The figure of each block."""
    figures = (_figure(series.taken(at[each]), statistic) for each in blocks)
    return np.asarray([on_scale(each, scale) for each in figures])


def _pulls(
    series: Series, at: Indices, blocks: Sequence[Indices], quantile: float, scale: Scale
) -> Floats:
    """How far each block pulls a percentile of the whole, linearised (Bahadur 1966): a block's own
    percentile is another figure where few requests, such as those of one queue, make the tail."""
    assert isinstance(series, Values)
    value = series.value
    reach = min(min(quantile, 1 - quantile) / 2, 1 / np.sqrt(len(value)))
    low, high = (
        on_scale(float(np.quantile(value, quantile + step)), scale) for step in (-reach, reach)
    )
    below = (value <= np.quantile(value, quantile)).astype(np.float64)
    share = np.asarray([below[at[each]].mean() for each in blocks])
    return np.asarray((below.mean() - share) * (high - low) / (2 * reach))


def _clusters(series: Series, quantile: float) -> int:
    """How often the run went beyond its percentile; what follows closer than by chance, as in one
    queue, is once (the runs estimator, Smith and Weissman 1994)."""
    assert isinstance(series, Values)
    beyond = series.value > np.quantile(series.value, quantile)
    places = np.flatnonzero(beyond if quantile >= 0.5 else ~beyond)
    return 1 + int((np.diff(places) > 1 / min(quantile, 1 - quantile)).sum())


def _common(base: RequestMarks, new: RequestMarks) -> tuple[Floats, Indices, Indices]:
    """In the order of the stream: those that are on both sides, and where they are."""
    return np.intersect1d(base.number, new.number, return_indices=True)


def common_rows(base: Ratio, new: Ratio) -> tuple[Ratio, Ratio]:
    """Those of the requests that both have; both must have marks."""
    assert base.marks is not None
    assert new.marks is not None
    _, at_base, at_new = _common(base.marks, new.marks)
    return base.taken(at_base), new.taken(at_new)


def _figure(series: Series, statistic: Statistic) -> float:
    return estimate(series, statistic, 1).value


def _batches(batch: Indices) -> Iterator[Indices]:
    """Places of each batch, several together where there are very many."""
    names = np.unique(batch)
    for some in np.array_split(names, min(len(names), MOST_BLOCKS)):
        yield np.flatnonzero(np.isin(batch, some))
