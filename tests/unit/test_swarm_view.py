"""What the terminal says of a run."""

import logging
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.stats.summary import TAILS, statistics_of, summarize
from loadgen.stats.tally import Tally
from loadgen.swarm.showing.summary_words import (
    error_lines,
    in_percent,
    steady_lines,
    summary_lines,
    summary_table,
)
from loadgen.swarm.showing.view import LiveFigures, fit_log, live_lines

RESTARTED = {"hit_rate": None, "counter_reset": True}
SERVER = {"computed_prompt_tokens": 25, "cached_prompt_tokens": 75, "hit_rate": 0.75}


@pytest.mark.parametrize(
    ("server", "cached_share", "said"),
    [
        (None, None, "nothing is known of the host's cache"),
        (None, 0.6, "60.0% from cache, by the replies of the host (no counters of the engine)"),
        (None, 0.0, "0.0% from cache, by the replies"),
        (RESTARTED, 0.6, "60.0% from cache, by the replies of the host (an engine started again)"),
        (RESTARTED, None, "unknown, as an engine started again, and its counters with it"),
        (SERVER, 0.6, "25 computed, 75 from cache, hit rate 75.0%"),
    ],
)
def test_the_cache_is_told_by_the_engine_else_by_the_replies(
    server: dict[str, Any] | None, cached_share: float | None, said: str
) -> None:
    summary = summarize(
        Tally(), duration_s=1.0, diversity=None, server=server, client_saturated=False
    )
    told = {"cached_share": cached_share, "stats_reset_s": None, "lost_workers": 0}
    (line,) = [each for each in summary_lines(summary | told) if each.startswith("prompt tokens")]
    assert said in line


@pytest.mark.parametrize(("share", "said"), [(1.0, "100.0%"), (0.9996, "99.96%"), (0.9, "90.0%")])
def test_a_goodput_short_of_the_whole_is_not_told_as_all(share: float, said: str) -> None:
    summary = summarize(
        Tally(), duration_s=1.0, diversity=None, server=None, client_saturated=False
    )
    told = {"cached_share": None, "stats_reset_s": None, "lost_workers": 0}
    lines = summary_lines(summary | told | {"goodput_share": share, "goodput_per_s": 2.0})
    assert f"goodput: {said} of requests within the objective, 2.0 requests/s" in lines


@pytest.mark.parametrize(("share", "said"), [(1.0, "100%"), (0.996, "99%"), (0.5, "50%")])
def test_only_the_whole_is_told_as_all_without_decimals(share: float, said: str) -> None:
    assert in_percent(share) == said


def test_a_run_that_sent_nothing_says_so() -> None:
    summary = summarize(
        Tally(), duration_s=1.0, diversity=None, server=None, client_saturated=False
    )
    told = {"cached_share": None, "stats_reset_s": None, "lost_workers": 0}
    assert "none was sent" in summary_lines(summary | told)[0]


@pytest.mark.parametrize(
    ("count", "tails"), [(9, "---"), (19, "5--"), (20, "55-"), (99, "55-"), (100, "555")]
)
def test_percentiles_that_no_value_lies_beyond_are_not_told(count: int, tails: str) -> None:
    tally = Tally()
    for _ in range(count):
        tally.sketches["ttft_ms"].add(5.0)
    summary = summarize(tally, duration_s=1.0, diversity=None, server=None, client_saturated=False)
    told = {"cached_share": None, "stats_reset_s": None, "lost_workers": 0}
    table = summary_table(summary)
    place = [*table.columns[0].cells].index("ttft_ms")
    assert [[*column.cells][place] for column in table.columns[1:]] == [
        *(str(count), "5", "5", *tails, "5")
    ]
    assert (TAILS in summary_lines(summary | told)) == ("-" in tails)
    steady = STEADY | {"metrics": dict.fromkeys(("ttft_ms", "e2e_ms"), _statistics(count))}
    (_, without) = steady_lines({"warmup": None, "steady_state": steady})
    assert f"TTFT p50/p95 5 / {tails[1]} ms" in without


def _statistics(count: int) -> dict[str, float | None]:
    sketch = Tally().sketches["ttft_ms"]
    sketch.add(5.0, count)
    return statistics_of(sketch)


@pytest.mark.parametrize(("per_s", "said"), [(0.04, "0.04"), (0.0, "0.0"), (1.26, "1.3")])
def test_a_slow_rate_is_not_told_as_none(per_s: float, said: str) -> None:
    summary = summarize(
        Tally(), duration_s=1.0, diversity=None, server=None, client_saturated=False
    )
    told = {"requests_per_s": per_s, "stats_reset_s": None, "lost_workers": 0}
    assert summary_lines(summary | told)[1].startswith(f"throughput: {said} requests/s")


def test_failures_and_exceptions_are_lines_and_none_is_left_out_unsaid() -> None:
    errors = {n: SimpleNamespace(occurrences=n, error=f"HTTP 500: {n}") for n in range(1, 9)}
    raised = {1: {"count": 2, "msg": "a\nb" + "c" * 5_000}}
    *failures, more, exception = error_lines(SimpleNamespace(errors=errors, exceptions=raised))
    assert failures == [f"{n} x HTTP 500: {n}" for n in (8, 7, 6, 5, 4)]
    assert more == "and 3 more kinds of failures"
    assert exception.startswith("2 x exception in a user: a bccc")
    assert len(exception) < 400


STEADY: dict[str, Any] = {
    "settled": True,
    "from_s": 12.34,
    "early": 41,
    "shift": 0.123,
    "requests_per_s": 9.87,
    "metrics": {name: {"count": 99, "p50": 100.0, "p95": 250.5} for name in ("ttft_ms", "e2e_ms")},
}


@pytest.mark.parametrize(
    ("warmup", "steady", "said"),
    [
        (None, None, []),
        (None, STEADY | {"early": 0}, []),
        (None, STEADY | {"shift": 0.04}, []),
        (None, STEADY | {"settled": None}, []),
        (None, STEADY | {"settled": False}, ["NOT SETTLED: time to first token kept drifting"]),
        (
            None,
            STEADY,
            [
                "warm-up: 41 requests of the first 12.3 s move the mean TTFT by +12% and are",
                "without them: TTFT p50/p95 100 / 250.5 ms, E2E p50/p95 100 / 250.5 ms, 9.9 req",
            ],
        ),
        (
            {"seconds": 30.0, "requests": 140, "failed": 0, "given": True},
            STEADY | {"early": 0},
            ["warm-up: the first 30 s are left out, 140 requests"],
        ),
        (
            {"seconds": 12.345, "requests": 41, "failed": 1, "given": False},
            None,
            ["warm-up: the first 12.35 s are left out as they were found to be one, 41 req"],
        ),
        (
            {"seconds": 0.0, "requests": 0, "failed": 0, "given": False},
            STEADY | {"settled": False},
            ["warm-up: none was found, so nothing is left out", "NOT SETTLED"],
        ),
    ],
)
def test_a_warmup_is_told_as_far_as_it_matters(
    warmup: dict[str, Any] | None, steady: dict[str, Any] | None, said: list[str]
) -> None:
    lines = steady_lines({"warmup": warmup, "steady_state": steady})
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


def test_the_log_is_no_wider_than_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    logger, written = logging.getLogger("locust"), Terminal()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("[%(asctime)s] host/%(levelname)s: %(message)s"))
    monkeypatch.setattr(logger, "handlers", [handler])
    fit_log()
    fit_log()
    said = "own.py, line 7 blocks the event loop, and with it all users of this process: sleep with"
    logger.warning("%s asyncio", said)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(map(str.strip, lines)).endswith(f"{said} asyncio")


def test_the_run_so_far_stands_beside_the_last_second_within_80_columns() -> None:
    now = dict.fromkeys(("hit_rate", "goodput_share")) | {
        f"{kind}_{share}_ms": 123_456.7
        for kind in ("ttft", "e2e", "retrieval")
        for share in ("p50", "p95")
    }
    now |= {"at": 0.0, "elapsed_s": 36_000.0, "users": 10_000, "failed": 1_234_567}
    now |= {"requests": 72_000_000, "output_tokens": 3_600_000_000}
    now |= {"requests_per_s": 15.24, "output_tokens_per_s": 75_000.0}
    lines = live_lines(LiveFigures(**now))
    assert (
        "last second 15.2 req/s, 75000 tokens/s; so far 2000 req/s, 100000 tokens/s" in (lines[1])
    )
    assert max(map(len, lines)) <= 80
    full = live_lines(LiveFigures(**now | {"hit_rate": 0.5, "goodput_share": 0.25}))
    assert full[-1].startswith("  hit rate 50%, 25% in objective, retrieval 123457/")
    assert max(map(len, full)) <= 80
    almost = live_lines(LiveFigures(**now | {"hit_rate": 0.996, "goodput_share": 0.999}))
    assert almost[-1].startswith("  hit rate 99%, 99% in objective, ")
