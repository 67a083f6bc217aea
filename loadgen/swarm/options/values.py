"""Option values as the command line, a file or a web form gives them, read and checked."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.scratch import expanded


def text(values: Mapping[str, Any], name: str) -> str | None:
    """Without space around it; None where it is missing or empty."""
    value = values.get(name)
    return str(value).strip() or None if value is not None else None


def path(values: Mapping[str, Any], name: str) -> Path | None:
    """A path with `~` replaced; None where it is missing or empty."""
    given = text(values, name)
    return expanded(given) if given else None


def flag(values: Mapping[str, Any], name: str) -> bool:
    """Whether it is on."""
    return str(values.get(name, "")).lower() in ("true", "1", "yes", "on")


def whole(values: Mapping[str, Any], name: str, default: int, least: float = -math.inf) -> int:
    """A whole number from `least` on. Raises UsageError."""
    given = text(values, name)
    try:
        value = int(given) if given else default
    except ValueError:
        raise UsageError(f"{_spelled(name)} {given!r} is not a whole number") from None
    if value < least:
        raise UsageError(f"{_spelled(name)} {value} is out of range: give {least:g} or more")
    return value


def number(
    values: Mapping[str, Any],
    name: str,
    default: float,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    """A finite number from `least` on or above `above`, at most `most`. Raises UsageError."""
    given = text(values, name)
    try:
        value = float(given) if given else default
    except ValueError:
        raise UsageError(f"{_spelled(name)} {given!r} is not a number") from None
    if not math.isfinite(value) or value < least or value <= above or value > most:
        bound = f"above {max(above, 0):g}" if above > -math.inf else f"from {max(least, 0):g} on"
        bound = f"from {least:g} to {most:g}" if most < math.inf else bound
        raise UsageError(f"{_spelled(name)} {value:g} is out of range: give a number {bound}")
    return value


def choice(values: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`, the first where none is given. Raises UsageError."""
    given = text(values, name) or choices[0]
    if given not in choices:
        raise UsageError(f"{_spelled(name)} {given!r} is unknown: choose {', '.join(choices)}")
    return given


def lines(value: Any) -> tuple[str, ...]:
    """The lines of a text, or the members of a list, that are not empty."""
    given = value.splitlines() if isinstance(value, str) else (value or ())
    return tuple(line.strip() for line in given if line.strip())


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")
