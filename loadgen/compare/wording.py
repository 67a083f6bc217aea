"""Figures and names as they are shown, the same in every format."""

import math
import unicodedata
from collections.abc import Sequence

from loadgen.compare.comparison import ComparedMetric, ExactCount
from loadgen.compare.gate import Limit
from loadgen.compare.interval import Interval
from loadgen.compare.judgement import MOST_SEEN, LimitJudgement, single_runs
from loadgen.compare.metrics import NOTHING, Statistic, digits, figure
from loadgen.runs.csv_log import without_formula

LEAST_FACTOR = 1.095
MOST_SHOWN = 10_000
"""A change by this factor or more is only said to be so: what lies beyond is no measurement."""


def plain(name: str) -> str:
    """A name from outside on one line: no control characters, and nothing that a spreadsheet
    would take for a formula."""
    kept = "".join(each if unicodedata.category(each)[0] != "C" else " " for each in name)
    return without_formula(kept)


def cells(row: ComparedMetric) -> tuple[str, ...]:
    """What tables show of it: both figures, the change, its interval and the verdict."""
    figures = (figure(row.statistic, value) for value in (row.base, row.new))
    return (*figures, change(row), bounds(row), verdict(row))


def change(row: ComparedMetric) -> str:
    """The difference without its interval: `-57.0 % (2.3 times as fast)`."""
    if row.change is None:
        return NOTHING
    factor = _factor(row.statistic, 1 + row.change.estimate)
    return _percent(row.statistic, row.change.estimate) + (f" ({factor})" if factor else "")


def _factor(statistic: Statistic, ratio: float) -> str:
    """In words where it is not small and means something."""
    if statistic.metric.form == "share" or not 1 / MOST_SHOWN < ratio < MOST_SHOWN:
        return ""
    if max(ratio, 1 / ratio) < LEAST_FACTOR:
        return ""
    times = digits(float(f"{max(ratio, 1 / ratio):.2g}"))
    if statistic.metric.unit not in ("ms", "s"):
        return f"{times} times" if ratio > 1 else ""
    return f"{times} times as {'fast' if ratio < 1 else 'long'}"


def bounds(row: ComparedMetric) -> str:
    """The interval of the difference."""
    if row.change is None or row.verdict in ("no interval", "too little data"):
        return NOTHING
    return between(row.statistic, row.change)


_OF_THE_INTERVAL = {
    "no evidence": "interval holds 0",
    "too little data": "too few data for an interval",
    "no interval": "totals have no interval",
}


def verdict(row: ComparedMetric) -> str:
    """`better, lower in 3 of 3 runs`; of an interval that shows nothing, why."""
    said = _OF_THE_INTERVAL.get(row.verdict, row.verdict)
    if row.verdict == "single runs" and row.explained_by is not None:
        said = f"between {single_runs(row.explained_by)}"
    if row.verdict == "too little data" and min(row.samples) < row.statistic.least_values:
        said = f"too few values for a {row.statistic.of_values}"
    agreed = agreement(row)
    return f"{said}, {agreed}" if agreed else said


def agreement(row: ComparedMetric) -> str:
    """`lower in 3 of 3 runs`, by the direction of the estimate; empty where there are no pairs."""
    found = row.agreement
    if found is None or row.change is None or not row.change.estimate:
        return ""
    is_lower = row.change.estimate < 0
    many = found.lower if is_lower else found.higher
    return f"{'lower' if is_lower else 'higher'} in {many} of {found.count} {found.unit}"


def count(exact: ExactCount) -> str:
    """`computed tokens 46,432 and 14,208 (-69.4 %)`, base and new."""
    told = f"{exact.name.replace('_', ' ')} {exact.base:,} and {exact.new:,}"
    return f"{told} ({100 * (exact.new / exact.base - 1):+.1f} %)" if exact.base else told


def counts(exact: Sequence[ExactCount]) -> str:
    """All of them in a sentence; empty without any."""
    if not exact:
        return ""
    told = "; ".join(map(count, exact))
    return f"exactly, base and new, of the same {exact[0].requests:,} requests: {told}"


def between(statistic: Statistic, interval: Interval) -> str:
    """Both ends of a change."""
    low, high = _percent(statistic, interval.low), _percent(statistic, interval.high)
    return f"{low} to {high}"


def _percent(statistic: Statistic, value: float) -> str:
    """A change in percent, of shares in points."""
    unit = "points" if statistic.metric.form == "share" else "%"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) > MOST_SHOWN:
        return f"{'>+' if value > 0 else '<-'}{100 * MOST_SHOWN:,} {unit}"
    digits = ".1f" if abs(value) < 10 else ",.0f"
    return f"{format(100 * value, '+' + digits)} {unit}"


def finding(judgement: LimitJudgement) -> str:
    """What was found of a limit, with its interval where there is one, and what could be seen."""
    limit, interval = judgement.limit, judgement.interval
    found = ""
    if interval is not None:
        ends = (interval.estimate, interval.low, interval.high)
        middle, low, high = (_of_limit(limit, end) for end in ends)
        found = f"{middle} ({low} to {high})"
    parts = (found, judgement.reason, _seen(judgement))
    return "; ".join(part for part in parts if part)


def _seen(judgement: LimitJudgement) -> str:
    """`sees changes from 12 % on: for 10 % make runs 2 times as long, or 5 repeats`."""
    if judgement.seen is None:
        return ""
    longer = f"runs {judgement.times:,} times as long" if judgement.times else ""
    repeats = f"{judgement.repeats:,} repeats" if judgement.repeats else ""
    more = ", or ".join(filter(None, (longer, repeats))) or "more or longer runs"
    if judgement.seen > MOST_SEEN:
        return f"sees no change of any size: make {more}"
    unit = "points" if judgement.limit.statistic.metric.form == "share" else "%"
    sizes = (judgement.seen, judgement.wanted)
    seen, wanted = (digits(float(f"{100 * each:.2g}")) for each in sizes)
    if judgement.times == 1:
        return f"sees changes from {seen} {unit} on"
    return f"sees changes from {seen} {unit} on: for {wanted} {unit} make {more}"


def _of_limit(limit: Limit, value: float) -> str:
    if limit.kind == "value":
        return figure(limit.statistic, value)
    if limit.kind == "relative" or limit.statistic.metric.form == "share":
        return _percent(limit.statistic, value)
    return f"{value:+.4g} {limit.statistic.metric.unit}"


def confidence(level: float) -> str:
    """`95 %`, or with as many digits as it takes."""
    return f"{100 * level:.6g} %"
