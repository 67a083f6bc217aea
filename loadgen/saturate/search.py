"""Which load is tried next, from nothing but what is known of those tried so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.saturate.space import Space

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
