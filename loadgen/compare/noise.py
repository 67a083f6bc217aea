"""How much identical runs differ on a machine beyond what each of them can know of itself.

A run knows how far off it is from the spread inside it. What it cannot know is what was different
about that quarter of an hour: a neighbour on the machine, where memory came to lie, which core was
warm. Only several identical runs show it.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare.comparability import differences
from loadgen.compare.estimate import LEAST_SAMPLES, Estimate, batch_count, estimate
from loadgen.compare.interval import RunSpread, Scale, error_within, on_scale
from loadgen.compare.metrics import MEAN, METRICS, Statistic
from loadgen.compare.run import ComparedRun
from loadgen.errors import UsageError
from loadgen.runs.json_file import write_json
from loadgen.runs.recorded import SIMULATED
from loadgen.scratch import without_device

LEAST_RUNS = 3
_OF_VALUES = (MEAN, "p50", "p90", "p95", "p99")
_SCALES: tuple[Scale, Scale] = ("log", "plain")


@dataclass(frozen=True, slots=True)
class Noise:
    """`deviations` by statistic and scale: standard deviations between runs, on a logarithmic
    scale (0.02 is 2 %) and in the metric's own unit. `totals` is how much the runs' figures varied
    in all, on the logarithmic scale."""

    machine: str
    target: str
    runs: tuple[str, ...]
    deviations: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]

    def spread(self, statistic: Statistic, scale: Scale) -> RunSpread | None:
        """That of the statistic; of one that was not measured, the widest of its metric."""
        names = [statistic.name]
        if statistic.name not in self.deviations:
            names = [
                name for name in self.deviations if name.startswith(f"{statistic.metric.name}.")
            ]
        known = [self.deviations[name][scale] for name in names if name in self.deviations]
        return RunSpread(max(known), len(self.runs) - 1) if known else None


def measure_noise(runs: Sequence[ComparedRun]) -> Noise:
    """The spread between runs that were made alike. Raises UsageError where they were not.

    With S² the variance of the runs' figures and W the mean of half the squared standard error of
    the difference of each run and the next, the spread is sqrt(max(0, S² - W)).
    """
    if len(runs) < LEAST_RUNS:
        raise UsageError(f"{len(runs)} run(s) show no spread: give {LEAST_RUNS} or more")
    _require_identical(runs)
    deviations: dict[str, dict[str, float]] = {}
    totals: dict[str, float] = {}
    for statistic in _statistics():
        found = _estimates(runs, statistic)
        if found:
            deviations[statistic.name] = {scale: _excess(found, scale) for scale in _SCALES}
            totals[statistic.name] = math.sqrt(_variance(found, "log"))
    if not deviations:
        raise UsageError(f"no metric has {LEAST_SAMPLES} samples in each run: make them longer")
    facts = runs[0].facts or {}
    names = tuple(run.name for run in runs)
    return Noise(runs[0].machine, facts.get("target", ""), names, deviations, totals)


def _require_identical(runs: Sequence[ComparedRun]) -> None:
    for run in runs:
        if run.facts is None:
            raise UsageError(f"{run.name} does not say how it was made: give run directories")
        if run.facts.get("cache_state") == SIMULATED:
            raise UsageError(f"{run.name} is simulated, and no server differs in it: leave it out")
        found = differences(runs[0].facts or {}, run.facts)
        if found or run.machine != runs[0].machine:
            named = "; ".join(map(str, found[:4])) or "machine"
            raise UsageError(f"{runs[0].name} and {run.name} are not identical runs: {named}")


def _statistics() -> Iterator[Statistic]:
    for metric in METRICS.values():
        for of_values in _OF_VALUES if metric.form == "values" else ("",):
            yield Statistic(metric, of_values)


def _estimates(runs: Sequence[ComparedRun], statistic: Statistic) -> list[Estimate]:
    """One for each run, or none where a run has too little."""
    samples = min(run.samples(statistic) for run in runs)
    series = [data for run in runs if (data := run.data(statistic)) is not None]
    if samples < LEAST_SAMPLES or len(series) < len(runs):
        return []
    found = [estimate(each, statistic, batch_count(samples)) for each in series]
    return (
        found if statistic.metric.form == "share" or all(each.value > 0 for each in found) else []
    )


def _variance(found: Sequence[Estimate], scale: Scale) -> float:
    if scale == "log" and min(each.value for each in found) <= 0:
        return 0.0
    return float(np.var([on_scale(each.value, scale) for each in found], ddof=1))


def _excess(found: Sequence[Estimate], scale: Scale) -> float:
    variance = _variance(found, scale)
    if not variance:
        return 0.0
    errors = [error_within(pair, (-1.0, 1.0), scale) for pair in pairwise(found)]
    known = [error * error / 2 for error in errors if math.isfinite(error)]
    return math.sqrt(max(0.0, variance - (float(np.mean(known)) if known else 0.0)))


def write_noise(noise: Noise, path: Path) -> None:
    """Keep it as JSON, in the place of nothing but an older one. Raises UsageError."""
    try:
        _require_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(noise))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another") from None


def _require_free(path: Path) -> None:
    """Raises UsageError where something stands that `write_noise` did not write, and OSError."""
    if not os.path.lexists(path):
        return
    with contextlib.suppress(UsageError):
        if path.is_file():  # reading a pipe or a device might never end
            read_noise(path)
            return
    raise UsageError(
        f"{path} exists and is not a file of `kvswarm noise`: name another with --out or remove it"
    )


def read_noise(path: Path) -> Noise:
    """What `write_noise` wrote. Raises UsageError."""
    try:
        return _noise_of(json.loads(without_device(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): name a file of `kvswarm noise`"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise UsageError(f"{path} is no file of `kvswarm noise`: make one with it") from None


def _noise_of(content: Mapping[str, Any]) -> Noise:
    return Noise(
        str(content["machine"]),
        str(content["target"]),
        tuple(map(str, content["runs"])),
        {
            name: {scale: _finite(scales[scale]) for scale in _SCALES}
            for name, scales in content["deviations"].items()
        },
        {name: _finite(total) for name, total in content["totals"].items()},
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no spread")
    return number
