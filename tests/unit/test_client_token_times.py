"""Which times of tokens are their own: by when sockets were looked at."""

from array import array
from typing import Any

import pytest

from loadgen.client import token_times
from loadgen.client.token_times import ReadLog, TokenTimes

CALM = [0.00, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.10]
BLOCKED = [0.00, 0.01, 0.09, 0.10]


def log_of(monkeypatch: pytest.MonkeyPatch, looks_s: list[float], unstamped: int = 0) -> ReadLog:
    """A log whose sockets were looked at then, and read a millisecond later."""
    monkeypatch.setattr(token_times.time, "perf_counter", lambda: looks_s[0])
    log = ReadLog()
    for at_s in looks_s:
        log.looked(at_s, at_s + 0.001, at_s)
    log.counts.reads, log.counts.unstamped_reads = 100, unstamped
    return log


@pytest.mark.parametrize(
    ("looks_s", "tokens_s", "shared", "late"),
    [
        (CALM, [0.011, 0.031, 0.051, 0.071], 0, 0),
        (CALM, [0.011, 0.031, 0.031, 0.031], 2, 0),  # the host's own way
        (BLOCKED, [0.005, 0.085, 0.085, 0.085], 2, 2),
        (BLOCKED, [0.005, 0.025, 0.045, 0.085], 0, 0),
        (BLOCKED, [0.005, 0.005, 0.045, 0.095], 1, 0),
        (BLOCKED, [], 0, 0),
    ],
)
def test_with_the_kernels_time_shared_tokens_of_a_late_read_have_none_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
    looks_s: list[float],
    tokens_s: list[float],
    shared: int,
    late: int,
) -> None:
    log = log_of(monkeypatch, looks_s)
    log.count(array("d", tokens_s))
    counts = log.take()
    assert (counts.tokens, counts.shared, counts.late) == (len(tokens_s), shared, late)
    assert counts.clock == "kernel"
    assert counts.late_mean_ms == (pytest.approx(81) if late else None)


def test_with_the_loops_time_no_token_of_a_late_read_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = log_of(monkeypatch, BLOCKED, unstamped=100)
    log.count(array("d", [0.005, 0.0901, 0.0904, 0.0952]))
    assert (log.counts.late, log.counts.clock) == (2, "event loop")


def test_what_could_not_all_be_read_lay_there_since_the_look_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = log_of(monkeypatch, [0.0])
    for at_s in (0.01, 0.02, 0.03, 0.04):
        log.looked(at_s, at_s + 0.001, 0.0)
    log.count(array("d", [0.0395, 0.0395]))
    assert (log.counts.late, log.counts.late_ms) == (1, pytest.approx(41))


def test_a_take_leaves_what_is_still_to_come() -> None:
    log = ReadLog()
    log.count(array("d", [1.0, 1.0]))
    assert log.take() == TokenTimes(tokens=2, shared=1)
    log.count(array("d", [2.0]))
    assert log.take() == TokenTimes(tokens=1)


@pytest.mark.parametrize(
    ("counts", "clock"),
    [
        ({}, None),
        ({"tokens": 5}, "event loop"),
        ({"tokens": 5, "reads": 5}, "kernel"),
        ({"tokens": 5, "reads": 5, "unstamped_reads": 2}, "kernel"),
        ({"tokens": 5, "reads": 5, "unstamped_reads": 3}, "event loop"),
    ],
)
def test_the_clock_is_that_of_most_reads(counts: dict[str, Any], clock: str | None) -> None:
    assert TokenTimes(**counts).figures()["clock"] == clock
