"""Figures as they stand in a sentence."""

from collections.abc import Callable, Sequence

NO_FINDING = (
    "Each engine was started once for all its repeats. Engines that were started alike differ in"
    " speed by some percent, of which no interval here knows: a difference of less than a tenth in"
    " time is no finding."
)
"""Of runs that share an engine process."""


def count(value: float) -> str:
    """A whole number with commas."""
    return f"{value:,.0f}"


def times(ratio: float) -> str:
    """`2.4 times`."""
    return f"{factor(ratio)} times"


def factor(ratio: float) -> str:
    """`2.4`; two digits behind the point where one would leave nothing of it."""
    if ratio >= 10:
        return f"{ratio:.0f}"
    return f"{ratio:.1f}" if ratio >= 1.1 else f"{ratio:.2f}"


def percent(share: float) -> str:
    """A share of 0 to 1 as percent; only the whole is 100 %."""
    if 0 < abs(share) < 0.0995 or 0.995 <= abs(share) < 1:
        return f"{max(-99.9, min(100 * share, 99.9)):.1f} %"
    return f"{100 * share:.0f} %"


def change(part: float) -> str:
    """`+12 %` for 0.12."""
    return f"{100 * part:+.0f} %"


def duration(value_ms: float) -> str:
    """Milliseconds with three digits that count, seconds from one on."""
    if abs(value_ms) >= 1000:
        return f"{value_ms / 1000:.2f} s" if abs(value_ms) < 10_000 else f"{value_ms / 1000:.1f} s"
    return f"{value_ms:.0f} ms" if abs(value_ms) >= 100 else f"{value_ms:.1f} ms"


def seconds(value_s: float) -> str:
    """The same of seconds."""
    return duration(1000 * value_s)


def span(values: Sequence[float], write: Callable[[float], str]) -> str:
    """`40 % to 52 %`, or `40 %` where all are written alike."""
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def unit_of(unit: str, values: Sequence[str]) -> str:
    """`users`, but `user` of 1 alone."""
    return unit.removesuffix("s") if list(values) == ["1"] else unit


def crowd(users: str) -> str:
    """`one user`, `8 users at once`."""
    return "one user" if float(users) == 1 else f"{count(float(users))} users at once"


def megabytes(size_bytes: float | None) -> str:
    """With three digits or all before the point; empty where it is not known."""
    return "" if size_bytes is None else f"{size_bytes / 1e6:,.3g} MB"


def memory(size_bytes: float) -> str:
    """MB below a GB."""
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes < 1e9 else f"{size_bytes / 1e9:.2g} GB"
