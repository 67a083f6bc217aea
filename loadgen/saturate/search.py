"""Which load is tried next, from nothing but what is known of those tried so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.errors import UsageError

By = Literal["rate", "users"]
DIGITS = 3
"""Of a rate, so that what is shown is what was sent."""
LEAST_TOLERANCE = 0.0001


@dataclass(frozen=True, slots=True)
class Space:
    """From `first` to `last` (None: without an end), in requests a second or in users. A bracket
    is narrow enough when its upper end is at most `tolerance` (0.05 is 5 %) above the lower one.
    Raises UsageError."""

    by: By
    first: float
    last: float | None
    tolerance: float

    def __post_init__(self) -> None:
        if not 0 < self.first < math.inf:
            raise UsageError(f"--from {self.first:g}: give a load above 0")
        if self.last is not None and not self.first < self.last < math.inf:
            raise UsageError(f"--to {self.last:g}: give more than --from, {self.first:g}")
        if not LEAST_TOLERANCE <= self.tolerance < 1:
            raise UsageError(
                f"--tolerance {100 * self.tolerance:g}%: give {100 * LEAST_TOLERANCE:g} or more,"
                " below 100"
            )
        for name, load in (("--from", self.first), ("--to", self.last)):
            if self.by == "users" and load is not None and load != round(load):
                raise UsageError(f"{name} {load:g}: give whole users")

    def beyond(self, load: float) -> float | None:
        """The next load to try above one that is met: twice as much, or the last."""
        if self.last is not None and load >= self.last:
            return None
        return min(2 * load, self.last or math.inf)

    def between(self, low: float, high: float) -> float | None:
        """The load to try inside a bracket: the geometric mean. None where it is narrow enough."""
        if high <= low * (1 + self.tolerance) * (1 + 1e-9):
            return None
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def steps(self, low: float, high: float) -> int:
        """How many loads are tried at most until a bracket is narrow enough."""
        return max(0, math.ceil(math.log2(math.log(high / low) / math.log(1 + self.tolerance))))

    def _rounded(self, load: float) -> float:
        if self.by == "users":
            return float(round(load))
        return round(load, DIGITS - 1 - math.floor(math.log10(load)))

    def said(self, load: float) -> str:
        """`6.2/s` or `12 users`."""
        if self.by == "rate":
            return f"{load:.4g}/s"
        return "1 user" if load == 1 else f"{load:.0f} users"


Verdict = Literal["met", "missed", "undecided"]
MOST_RUNS, CONFIRMING_RUNS = 3, 2
"""Of one load; how many an end of the final bracket has at least."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What all runs at one load say together. `wants_more` says that they are too few requests to
    decide, and that further runs could be enough."""

    load: float
    verdict: Verdict
    runs: int
    wants_more: bool = False


@dataclass(frozen=True, slots=True)
class Bracket:
    """`above` is the lowest load that was not met, `below` the highest that was met below it; None
    where there is none. `beside` were met although a lower one was not."""

    below: Finding | None
    above: Finding | None
    beside: tuple[Finding, ...] = ()


def bracket_of(findings: Sequence[Finding]) -> Bracket:
    """Where the limit lies. What is undecided is not met."""
    ordered = sorted(findings, key=lambda finding: finding.load)
    met = [finding for finding in ordered if finding.verdict == "met"]
    above = next((finding for finding in ordered if finding.verdict != "met"), None)
    if above is None:
        return Bracket(met[-1] if met else None, None)
    below = [finding for finding in met if finding.load < above.load]
    beside = tuple(finding for finding in met if finding.load > above.load)
    return Bracket(below[-1] if below else None, above, beside)


def next_load(findings: Sequence[Finding], space: Space) -> float | None:
    """The load of the next run, None when the search is over.

    Twice the load until one is not met, then the geometric mean of the bracket. The ends of a
    bracket that is narrow enough are run again with another seed, an undecided one up to
    `MOST_RUNS` times. If that turns one over, the search goes on from there: a limit never rests
    on one unlucky run, or on one lucky one.
    """
    for finding in findings:
        if finding.wants_more and finding.runs < MOST_RUNS:
            return finding.load
    bracket = bracket_of(findings)
    load = _untried(bracket, space)
    return load if load is not None else _unconfirmed(bracket)


def _untried(bracket: Bracket, space: Space) -> float | None:
    if bracket.below is None:
        return space.first if bracket.above is None else None
    if bracket.above is None:
        return space.beyond(bracket.below.load)
    return space.between(bracket.below.load, bracket.above.load)


def _unconfirmed(bracket: Bracket) -> float | None:
    for end in (bracket.above, bracket.below):
        if end is not None and end.runs < (
            MOST_RUNS if end.verdict == "undecided" else CONFIRMING_RUNS
        ):
            return end.load
    return None
