"""A comparison as JSON, for programs."""

import json
import math
from typing import Any

from loadgen.compare.comparison import Comparison
from loadgen.compare.interval import Interval
from loadgen.compare.judgement import Judgement
from loadgen.compare.row import Row


def to_json(comparison: Comparison) -> str:
    """Changes and shares as fractions (0.1 is 10 %); null where a bound is open or not known."""
    content = {
        "base": comparison.base,
        "new": comparison.new,
        "confidence_level": comparison.level,
        "metrics": [_row(row) for row in comparison.rows],
        "gate": [_judgement(judgement) for judgement in comparison.judgements],
        "exit_code": comparison.exit_code,
        "notes": comparison.remarks,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _row(row: Row) -> dict[str, Any]:
    return {
        "metric": row.statistic.name,
        "unit": "1" if row.statistic.metric.form == "share" else row.statistic.metric.unit,
        "base": _number(row.base),
        "new": _number(row.new),
        "samples": {"base": row.samples[0], "new": row.samples[1]},
        "change": _interval(row.change),
        "verdict": row.verdict,
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "limit": judgement.limit.text,
        "metric": judgement.limit.statistic.name,
        "kind": judgement.limit.kind,
        "bound": judgement.limit.bound,
        "found": _interval(judgement.interval),
        "outcome": judgement.outcome,
        "reason": judgement.reason,
    }


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    return {
        "estimate": _number(interval.estimate),
        "low": _number(interval.low),
        "high": _number(interval.high),
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
