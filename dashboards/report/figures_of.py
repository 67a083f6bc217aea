"""The figures of a run: those of its summary, or where it has none of its requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboards.report.run_files import ReportedRun
from loadgen.runs.columns import Floats
from loadgen.stats.metrics import CATALOG, figures, of_requests, summarized
from loadgen.stats.summary import known_statistics

STATISTICS = ("count", "mean", "p50", "p90", "p95", "p99", "max")
MEAN_GAP = "itl_mean_ms"
"""What a run without a summary has instead of single gaps."""
METRICS = tuple(name for name, each in CATALOG.items() if each in summarized() or name == MEAN_GAP)


@dataclass(frozen=True, slots=True)
class RunFigures:
    """`metrics` by name, each with `STATISTICS`; `rates` and shares (0 to 1) by name. None is "not
    known".
    `server` is empty where nothing is known of it. `computed` says that there was no summary."""

    requests: int
    ok: int
    outcomes: Mapping[str, int]
    duration_s: float
    rates: Mapping[str, float | None]
    metrics: Mapping[str, Mapping[str, float | None]]
    server: Mapping[str, Any]
    computed: bool

    @property
    def finished(self) -> int:
        """All but those that were `cancelled`."""
        return self.requests - self.outcomes.get("cancelled", 0)

    @property
    def failed(self) -> int:
        """Those that finished and not `ok`."""
        return self.finished - self.ok

    def of(self, metric: str, statistic: str) -> float | None:
        """One figure, None where it is not known."""
        return self.metrics.get(metric, {}).get(statistic)


def figures_of(run: ReportedRun) -> RunFigures:
    """From `summary.json`; without one, from the rows that were written."""
    try:
        return _told(run.summary)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _computed(run)


def _told(summary: Mapping[str, Any]) -> RunFigures:
    outcomes = {str(name): int(count) for name, count in summary["outcomes"].items()}
    metrics = summary["metrics"]
    return RunFigures(
        requests=int(summary["requests"]),
        ok=outcomes.get("ok", 0),
        outcomes=outcomes,
        duration_s=float(summary["duration_s"]),
        rates={
            each.name: _number(summary[each.name] if each.is_usual else summary.get(each.name))
            for each in figures()
        },
        metrics={
            name: known_statistics({each: _number(metrics[name][each]) for each in STATISTICS})
            for name in METRICS
            if name in metrics
        },
        server=dict(summary.get("server") or {}),
        computed=False,
    )


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"{value!r} is no number")


def _computed(run: ReportedRun) -> RunFigures:
    requests, ok = run.requests, run.requests.ok
    first_s, last_s = requests.span_s
    return RunFigures(
        requests=len(requests),
        ok=int(ok.sum()),
        outcomes=requests.outcomes,
        duration_s=last_s - first_s,
        rates={each.name: requests.figure(each.name) for each in figures()},
        metrics={
            name: statistics_of(requests.latency(column))
            for name, column in of_requests().items()
            if name in METRICS
        },
        server={},
        computed=True,
    )


def statistics_of(values: Floats) -> dict[str, float | None]:
    """`STATISTICS` of the values that are known, as far as these are enough."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {"count": 0, **dict.fromkeys(STATISTICS[1:])}
    quantiles = np.quantile(values, (0.5, 0.9, 0.95, 0.99))
    found = (float(values.mean()), *map(float, quantiles), float(values.max()))
    return known_statistics(dict(zip(STATISTICS, (len(values), *found), strict=True)))
