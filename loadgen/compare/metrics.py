"""What can be compared: metrics, and the statistics taken of them."""

import math
import re
from dataclasses import dataclass

from loadgen.errors import UsageError
from loadgen.stats.metrics import CATALOG, Metric, compared
from loadgen.stats.sketch import least_values

MEAN = "mean"
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


METRICS = compared()
ALSO_CALLED = {"goodput": "goodput_share"}
DEFAULTS = tuple(
    f"{each.name}.{of_values}" if of_values else each.name
    for each in CATALOG.values()
    for of_values in each.defaults
)
"""Shown where nothing is named, as far as the files have them."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """A metric and what is taken of its values: `mean`, or `pN` for a percentile; "" for a rate
    or a share."""

    metric: Metric
    of_values: str = ""

    @property
    def name(self) -> str:
        """As users write it: `ttft_ms.p95`, `errors`."""
        return f"{self.metric.name}.{self.of_values}" if self.of_values else self.metric.name

    @property
    def quantile(self) -> float | None:
        """The percentile as a number between 0 and 1, None for anything else."""
        found = _PERCENTILE.fullmatch(self.of_values)
        return float(found[1]) / 100 if found else None

    @property
    def least_values(self) -> int:
        """From how many values on a percentile has one beyond it."""
        return 1 if self.quantile is None else least_values(self.quantile)


def parse_statistic(text: str) -> Statistic:
    """`ttft_ms.p95` or `errors`. Raises UsageError."""
    name, _, of_values = text.strip().partition(".")
    metric = METRICS.get(ALSO_CALLED.get(name, name))
    if metric is None:
        raise UsageError(f"unknown metric {name!r}: one of {', '.join(METRICS)}")
    if metric.form != "values":
        if of_values:
            raise UsageError(f"{text.strip()!r}: {name} is one figure, write it without a point")
        return Statistic(metric)
    statistic = Statistic(metric, of_values)
    if of_values != MEAN and not 0 < (statistic.quantile or 0) < 1:
        raise UsageError(f"{text.strip()!r}: write {name}.mean or a percentile such as {name}.p95")
    return statistic


NOTHING = "-"


def figure(statistic: Statistic, value: float | None) -> str:
    """A value in its metric's unit, to four digits."""
    if value is None or math.isnan(value):
        return NOTHING
    if statistic.metric.form == "share":
        return f"{digits(100 * value)} %"
    return f"{digits(value)} {statistic.metric.unit}"


def digits(value: float) -> str:
    """A number to four digits."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def share_ends(share: float, samples: float, z: float) -> tuple[float, float]:
    """Wilson's interval (1927) of a share of so many independent samples, `z` standard errors to
    each side."""
    more = z * z / samples
    middle = (share + more / 2) / (1 + more)
    half = z * math.sqrt(share * (1 - share) / samples + more / (4 * samples)) / (1 + more)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
