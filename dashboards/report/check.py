"""One thing that was looked at in a run, and what was found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["good", "doubt", "bad", "unknown", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """`doubt` is what to think of before the figures are used, `bad` what forbids it."""

    name: str
    state: State
    finding: str
