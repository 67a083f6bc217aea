"""Figures in words and cells."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

NOTHING = "-"


def number(value: Any, unit: str = "") -> str:
    """To three or four digits, with thousands apart; a dash for what is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} {unit}" if unit else text


def milliseconds(value: Any) -> str:
    """A latency as people say it: `31.2 ms`, `4.21 s`."""
    if isinstance(value, int | float) and math.isfinite(value) and value >= 1000:
        return f"{value / 1000:.3g} s"
    return number(value, "ms")


def percent(value: Any) -> str:
    """A share, 0 to 1, in percent; only the whole is 100 %."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    if 0.9995 <= value < 1:
        return f"{min(100 * value, 99.99):.4g} %"
    return f"{100 * value:.1f} %" if 0.0005 < value < 0.9995 else f"{100 * value:.3g} %"


def megabytes(value: Any) -> str:
    """Megabytes, from a thousand on in gigabytes."""
    if isinstance(value, int | float) and value >= 1000:
        return f"{value / 1000:.3g} GB"
    return number(value, "MB")


def utc(start_s: Any) -> str:
    """A moment in seconds since 1970; empty for what is none."""
    try:
        return f"{datetime.fromtimestamp(start_s, UTC):%F %T} UTC"
    except (TypeError, OverflowError, ValueError, OSError):
        return ""


def counted(count: int, one: str, more: str = "") -> str:
    """`1 request`, `2 requests`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
