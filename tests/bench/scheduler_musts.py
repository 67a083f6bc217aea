"""What the plugin must reach, decided from the rows of a run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scheduler_cases import CACHE_SIZES, STOCK_ARM, size_title
from scheduler_rows import (
    AdmissionRow,
    EngineRow,
    OneEngineRow,
    VirtualBatchRow,
    VirtualPoissonRow,
    VirtualStarvationRow,
    read_rows,
)

STOCK = STOCK_ARM.name
DEFAULT = "reuse"
VIRTUAL_BATCH = "6 x 6"
TOTAL_RATIOS = {20: 0.40, 40: 0.50, 80: 0.85, 158: 1.02}
MEAN_RATIOS = {0.95: 0.75, 1.5: 0.25}
P99_RATIO = 1.0
COLD_RATIO = 1.1
ADMISSION_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Must:
    """`measured` must not be above `limit`; None was not measured. `worst` says whose it is."""

    measure: str
    limit: float
    measured: float | None = None
    worst: str = ""

    @property
    def met(self) -> bool:
        """Whether it holds; without a measurement it does not."""
        return self.measured is not None and self.measured <= self.limit


@dataclass(frozen=True, slots=True)
class Rows:
    """All that a run has measured, in the rows' own order."""

    engine: tuple[OneEngineRow, ...] = ()
    batches: tuple[VirtualBatchRow, ...] = ()
    poisson: tuple[VirtualPoissonRow, ...] = ()
    starvation: tuple[VirtualStarvationRow, ...] = ()
    admission: tuple[AdmissionRow, ...] = ()

    @classmethod
    def of(cls, directory: Path) -> "Rows":
        """What the CSV files of a run hold; a missing file has no rows."""
        return cls(
            tuple(read_rows(OneEngineRow, directory)),
            tuple(read_rows(VirtualBatchRow, directory)),
            tuple(read_rows(VirtualPoissonRow, directory)),
            tuple(read_rows(VirtualStarvationRow, directory)),
            tuple(read_rows(AdmissionRow, directory)),
        )


def musts(rows: Rows) -> list[Must]:
    """All of them, in the order of the report.

    Tokens, total times, overtakes and cost are those of the worst arm with the plugin, latencies
    those of its default policy.
    """
    return [
        *(_tokens(rows, blocks) for blocks in CACHE_SIZES),
        *(_total(rows, blocks) for blocks in CACHE_SIZES),
        *(_mean(rows, load) for load in MEAN_RATIOS),
        *(_p99(rows, load) for load in MEAN_RATIOS),
        _cold(rows),
        _overtakes(rows),
        _cost(rows, "cost of an admission / stock, {} waiting", lambda row: row.admission_ratio),
        _cost(rows, "cost of a step / stock, {} who cannot run", lambda row: row.scan_ratio),
    ]


def ratios_to_stock(rows: Iterable[EngineRow | OneEngineRow]) -> dict[str, list[float]]:
    """Total times of one case by arm, each divided by stock's in the same repeat."""
    totals: dict[str, dict[int, float]] = {}
    for row in rows:
        totals.setdefault(row.arm, {})[row.repeat] = row.total_s
    stock = totals.get(STOCK, {})
    return {
        arm: [total_s / stock[repeat] for repeat, total_s in times.items() if repeat in stock]
        for arm, times in totals.items()
    }


def _tokens(rows: Rows, blocks: int) -> Must:
    shares = {
        row.policy: row.most_tokens / row.bound_tokens
        for row in rows.batches
        if row.batch == VIRTUAL_BATCH and row.usable_blocks == blocks
    }
    return _worst(f"computed tokens / lower bound, {blocks} blocks", 1.0, shares)


def _total(rows: Rows, blocks: int) -> Must:
    of_size = [row for row in rows.engine if row.case == size_title(blocks)]
    ratios = {arm: median(values) for arm, values in ratios_to_stock(of_size).items() if values}
    return _worst(f"total time / stock, {blocks} blocks", TOTAL_RATIOS[blocks], ratios)


def _mean(rows: Rows, load: float) -> Must:
    ratios = {r.policy: r.mean_ratio for r in rows.poisson if r.load == load}
    measure = f"mean latency / stock, Poisson at {load:g}x capacity"
    return Must(measure, MEAN_RATIOS[load], ratios.get(DEFAULT), DEFAULT)


def _p99(rows: Rows, load: float) -> Must:
    ratios = {r.policy: r.p99_ratio for r in rows.poisson if r.load == load}
    measure = f"p99 latency / stock, Poisson at {load:g}x capacity"
    return Must(measure, P99_RATIO, ratios.get(DEFAULT), DEFAULT)


def _cold(rows: Rows) -> Must:
    means = {row.policy: row.cold_mean_s for row in rows.starvation}
    ratio = means[DEFAULT] / means[STOCK] if means.keys() >= {DEFAULT, STOCK} else None
    return Must("mean latency of cold contexts / stock, hot stream", COLD_RATIO, ratio, DEFAULT)


def _overtakes(rows: Rows) -> Must:
    over: dict[str, float] = {}
    found = [(row.policy, row.over_bound) for row in rows.poisson]
    found += [(row.policy, row.over_bound) for row in rows.starvation]
    for policy, beyond in found:
        over[policy] = max(beyond, over.get(policy, beyond))
    return _worst("overtakes of any request beyond its bound", 0, over)


def _cost(rows: Rows, measure: str, ratio: Callable[[AdmissionRow], float]) -> Must:
    ratios = {
        f"{row.policy}, {row.contexts} contexts": ratio(row)
        for row in rows.admission
        if row.policy != STOCK
    }
    waiting = max((row.waiting for row in rows.admission), default=0)
    return _worst(measure.format(f"{waiting:,}"), ADMISSION_RATIO, ratios)


def _worst(measure: str, limit: float, values: Mapping[str, float]) -> Must:
    ours = {arm: value for arm, value in values.items() if arm != STOCK}
    if not ours:
        return Must(measure, limit)
    worst = max(ours, key=lambda arm: ours[arm])
    return Must(measure, limit, ours[worst], worst)
