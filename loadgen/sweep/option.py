"""One option of `kvswarm run` with its value: as words of a command line, as text in a table."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from loadgen.runs.machine import hide_headers

Scalar: TypeAlias = str | int | float | bool
Value: TypeAlias = Scalar | Sequence[Scalar]


def is_value(value: Any) -> bool:
    """Whether it can stand behind an option: text, a finite number, a switch, or a list of such."""
    if isinstance(value, list | tuple):
        return (
            bool(value)
            and not any(isinstance(v, list | tuple) for v in value)
            and all(map(is_value, value))
        )
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def as_words(key: str, value: Value) -> tuple[str, ...]:
    """The words of the command line; a list gives the option once for each of its members."""
    if isinstance(value, list | tuple):
        return tuple(word for each in value for word in as_words(key, each))
    if isinstance(value, bool):
        return (f"--{key}",) if value else ()
    return (f"--{key}={value}",)


def text_of(key: str, value: Value) -> str:
    """The value as it stands in tables and folder names; those of headers are hidden."""
    if isinstance(value, list | tuple):
        return " ".join(text_of(key, each) for each in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return hide_headers([str(value)])[0] if key == "header" else str(value)
