"""The search for the highest load: against engines whose limit is known, and against chance."""

import random
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.saturate.search import (
    CONFIRMING_RUNS,
    MOST_RUNS,
    Bracket,
    By,
    Finding,
    Space,
    Verdict,
    bracket_of,
    next_load,
)

Oracle = Callable[[float, int], Verdict]
"""What a load is found to be after so many runs."""


def search(space: Space, oracle: Oracle, most: int = 500) -> dict[float, Finding]:
    findings: dict[float, Finding] = {}
    for _ in range(most):
        load = next_load(list(findings.values()), space)
        if load is None:
            return findings
        runs = findings[load].runs + 1 if load in findings else 1
        findings[load] = Finding(load, oracle(load, runs), runs)
    raise AssertionError("the search does not end")


def bracket(findings: dict[float, Finding]) -> Bracket:
    return bracket_of(list(findings.values()))


def runs(findings: dict[float, Finding]) -> int:
    return sum(finding.runs for finding in findings.values())


@given(
    capacity=st.floats(0.9, 900),
    last=st.sampled_from([None, 40.0, 1000.0]),
    by=st.sampled_from(["rate", "users"]),
)
def test_a_limit_that_is_sharp_is_found(capacity: float, last: float | None, by: By) -> None:
    space = Space(by, 1.0, last, 0.05)
    findings = search(space, lambda load, _: "met" if load <= capacity else "missed")
    found = bracket(findings)
    assert runs(findings) <= 10 + 4 + 2 + CONFIRMING_RUNS
    assert not found.beside
    if found.below is None:
        assert capacity < 1
    elif found.above is None:
        assert found.below.load == last <= capacity
    else:
        low, high = found.below.load, found.above.load
        assert low <= capacity < high
        assert high <= max(low * 1.05 * 1.01, low + 1)
        assert min(found.below.runs, found.above.runs) == CONFIRMING_RUNS


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), noise=st.floats(0, 1), tolerance=st.floats(0.01, 0.9))
def test_whatever_the_trials_say_the_bracket_agrees_with_all_of_them(
    seed: int, noise: float, tolerance: float
) -> None:
    dice = random.Random(seed)

    def oracle(load: float, _: int) -> Verdict:
        if dice.random() < noise:
            return cast(Verdict, dice.choice(["met", "missed", "undecided"]))
        return "met" if load <= 20 else "missed"

    space = Space("rate", 1.0, 100.0, tolerance)
    findings = search(space, oracle)
    found = bracket(findings)
    for load, finding in findings.items():
        assert finding.runs <= MOST_RUNS
        assert (finding in found.beside) == (
            finding.verdict == "met" and found.above is not None and load > found.above.load
        )
        if found.below is not None and load <= found.below.load:
            assert finding.verdict == "met"
        if found.above is not None and load < found.above.load:
            assert found.below is not None
            assert load <= found.below.load
    for end in (found.below, found.above):
        assert end is None or end.runs >= CONFIRMING_RUNS
    if found.below and found.above:
        assert space.between(found.below.load, found.above.load) is None


def test_one_unlucky_run_does_not_set_the_limit() -> None:
    def oracle(load: float, runs: int) -> Verdict:
        return "missed" if load > 20 or (load == 4 and runs == 1) else "met"

    found = bracket(search(Space("rate", 1.0, 100.0, 0.05), oracle))
    assert found.below is not None
    assert 19 <= found.below.load <= 20


def test_one_lucky_run_does_not_either() -> None:
    def oracle(load: float, runs: int) -> Verdict:
        return "met" if load <= 20 or (load < 22 and runs == 1) else "missed"

    found = bracket(search(Space("rate", 1.0, 100.0, 0.05), oracle))
    assert found.below is not None
    assert 19 <= found.below.load <= 20


def test_too_few_requests_are_more_runs_and_not_a_lower_load() -> None:
    findings = [Finding(1.0, "met", 1), Finding(2.0, "undecided", 1, wants_more=True)]
    space = Space("rate", 1.0, None, 0.05)
    assert next_load(findings, space) == 2.0
    findings[1] = Finding(2.0, "undecided", MOST_RUNS, wants_more=True)
    assert next_load(findings, space) == 1.41


@pytest.mark.parametrize(
    ("by", "first", "last", "tolerance", "said"),
    [
        ("rate", 0.0, None, 0.05, "--from 0"),
        ("rate", 5.0, 5.0, 0.05, "--to 5"),
        ("rate", 1.0, None, 0.0, "--tolerance 0%"),
        ("rate", 1.0, 10.0, 1e-17, "--tolerance 1e-15%"),
        ("users", 1.5, None, 0.05, "--from 1.5: give whole users"),
    ],
)
def test_what_is_no_space_is_said(
    by: By, first: float, last: float | None, tolerance: float, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Space(by, first, last, tolerance)
