"""What can be compared: metrics with their units, and the statistics taken of them."""

import re
from dataclasses import dataclass
from typing import Literal

from loadgen.errors import UsageError

MEAN = "mean"
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity of a run. One of values has statistics (`ttft_ms.p95`); a rate or a share is one
    figure (`requests_per_s`). A share is a part of a whole, 0 to 1, and is shown in percent."""

    name: str
    unit: str
    better: Literal["lower", "higher"]
    form: Literal["values", "rate", "share"] = "values"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ttft_ms", "ms", "lower"),
        Metric("itl_ms", "ms", "lower"),
        Metric("itl_p50_ms", "ms", "lower"),
        Metric("itl_p95_ms", "ms", "lower"),
        Metric("itl_p99_ms", "ms", "lower"),
        Metric("itl_max_ms", "ms", "lower"),
        Metric("tpot_ms", "ms", "lower"),
        Metric("e2e_ms", "ms", "lower"),
        Metric("retrieval_ms", "ms", "lower"),
        Metric("makespan_s", "s", "lower"),
        Metric("response_ms", "ms", "lower"),
        Metric("requests_per_s", "1/s", "higher", "rate"),
        Metric("output_tokens_per_s", "1/s", "higher", "rate"),
        Metric("errors", "%", "lower", "share"),
        Metric("cached_share", "%", "higher", "share"),
        Metric("goodput_share", "%", "higher", "share"),
    )
}


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


DEFAULTS: tuple[str, ...] = (
    "ttft_ms.p50",
    "ttft_ms.p95",
    "itl_ms.p50",
    "itl_ms.p95",
    "e2e_ms.p50",
    "e2e_ms.p95",
    "makespan_s.p50",
    "response_ms.mean",
    "response_ms.p50",
    "response_ms.p95",
    "requests_per_s",
    "output_tokens_per_s",
    "cached_share",
    "goodput_share",
    "errors",
)
"""Shown where nothing is named, as far as the files have them."""


def parse_statistic(text: str) -> Statistic:
    """`ttft_ms.p95` or `errors`. Raises UsageError."""
    name, _, of_values = text.strip().partition(".")
    metric = METRICS.get(name)
    if metric is None:
        raise UsageError(f"unknown metric {name!r}: one of {', '.join(METRICS)}")
    if metric.form != "values":
        if of_values:
            raise UsageError(f"{text.strip()!r}: {name} is one figure, write it without a point")
        return Statistic(metric)
    statistic = Statistic(metric, of_values)
    if of_values != MEAN and not statistic.quantile:
        raise UsageError(f"{text.strip()!r}: write {name}.mean or a percentile such as {name}.p95")
    return statistic


def parse_statistics(text: str) -> tuple[Statistic, ...]:
    """A comma-separated list. Raises UsageError."""
    return tuple(parse_statistic(part) for part in text.split(","))
