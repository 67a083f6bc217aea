"""Figures and names as they are shown, the same in every format."""

import math
import unicodedata

from loadgen.compare.comparison import ComparedMetric, LimitJudgement
from loadgen.compare.gate import Limit
from loadgen.compare.interval import Interval
from loadgen.compare.metrics import Statistic
from loadgen.runs.csv_log import without_formula

NOTHING = "-"
MOST_SHOWN = 10_000
"""A change by this factor or more is only said to be so: what lies beyond is no measurement."""


def plain(name: str) -> str:
    """A name from outside on one line: no control characters, and nothing that a spreadsheet
    would take for a formula."""
    kept = "".join(each if unicodedata.category(each)[0] != "C" else " " for each in name)
    return without_formula(kept)


def figure(statistic: Statistic, value: float | None) -> str:
    """A value in its metric's unit, to four digits."""
    if value is None or math.isnan(value):
        return NOTHING
    if statistic.metric.form == "share":
        return f"{_digits(100 * value)} %"
    return f"{_digits(value)} {statistic.metric.unit}"


def _digits(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def change(row: ComparedMetric) -> str:
    """The difference without its interval."""
    return NOTHING if row.change is None else _percent(row.statistic, row.change.estimate)


def bounds(row: ComparedMetric) -> str:
    """The interval of the difference."""
    if row.change is None or row.verdict in ("no interval", "too little data"):
        return NOTHING
    return between(row.statistic, row.change)


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
    """What was found of a limit, with its interval where there is one."""
    limit, interval = judgement.limit, judgement.interval
    found = "" if interval is None else _found(limit, interval)
    return "; ".join(part for part in (found, judgement.reason) if part)


def _found(limit: Limit, interval: Interval) -> str:
    shown = [_of_limit(limit, end) for end in (interval.estimate, interval.low, interval.high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def _of_limit(limit: Limit, value: float) -> str:
    if limit.kind == "value":
        return figure(limit.statistic, value)
    if limit.kind == "relative" or limit.statistic.metric.form == "share":
        return _percent(limit.statistic, value)
    return f"{value:+.4g} {limit.statistic.metric.unit}"


def confidence(level: float) -> str:
    """`99 %`, or with as many digits as it takes."""
    return f"{100 * level:.6g} %"
