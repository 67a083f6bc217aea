"""Where in a trace something stands, for readers that say what is wrong with it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError

MAX_TOKENS = 10_000_000


def sendable(text: str) -> str:
    """The text with question marks for lone surrogates, which JSON allows and UTF-8 does not."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, from 1, or for formats without lines the number of the entry."""

    path: Path
    number: int
    unit: str = "line"

    def wrong(self, what: str, mend: str) -> UsageError:
        """The error that names file, line and field."""
        return UsageError(f"{self.path}, {self.unit} {self.number}: {what}: {mend}")

    def tokens(self, fields: Mapping[str, Any], name: str, least: int = 1) -> int:
        """A number of tokens from `least` on. Raises UsageError."""
        value = self._number(fields, name)
        if not least <= value <= MAX_TOKENS or value != int(value):
            mend = f"write a whole number from {least} to {MAX_TOKENS}"
            raise self.wrong(f"{name} is {fields[name]!r}", mend)
        return int(value)

    def seconds(self, fields: Mapping[str, Any], name: str, per_second: float = 1.0) -> float:
        """A time from 0 on in seconds; the field has `per_second` units a second."""
        value = self._number(fields, name)
        if not 0 <= value < math.inf:
            raise self.wrong(f"{name} is {fields[name]!r}", "write a time from 0 on")
        return value / per_second

    def _number(self, fields: Mapping[str, Any], name: str) -> float:
        given = fields.get(name)
        try:
            if given is None or isinstance(given, bool):
                raise ValueError
            return float(given)
        except (ValueError, TypeError, OverflowError):
            said = f"{name} is missing" if given in (None, "") else f"{name} is {repr(given)[:40]}"
            raise self.wrong(said, "write a number") from None
