"""Whether a run settled, and what its warm-up does to its figures."""

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from loadgen.runs.requests import Requests, read_requests
from loadgen.stats import steady_state
from loadgen.stats.steady_state import (
    COLUMNS,
    SteadyState,
    find_steady_state,
    is_meant_steady,
    is_notable,
)


def columns(ttfts_ms: list[float]) -> dict[str, list[float]]:
    """Requests due each tenth of a second, in an order that is not that of their due times."""
    order = list(range(len(ttfts_ms)))
    Random(1).shuffle(order)
    due_s = [at / 10 for at in order]
    ttft_ms = [ttfts_ms[at] for at in order]
    return {
        "scheduled_s": due_s,
        "end_s": [at + 1 for at in due_s],
        "ttft_ms": ttft_ms,
        "tpot_ms": [math.nan] * len(order),
        "e2e_ms": [each + 5 for each in ttft_ms],
        "output_tokens": [4.0] * len(order),
    }


def found(ttfts_ms: list[float]) -> SteadyState:
    state = find_steady_state(columns(ttfts_ms))
    assert state is not None
    return state


def noise(count: int, seed: int) -> list[float]:
    """As uneven as latencies of a queue: exponential."""
    random = Random(seed)
    return [random.expovariate(1 / 100) for _ in range(count)]


def verdicts(series: list[list[float]]) -> list[SteadyState]:
    return [found(each) for each in series]


def test_steady_runs_are_seldom_called_unsettled_and_have_no_warmup() -> None:
    states = verdicts([noise(300, seed) for seed in range(100)])
    assert sum(state.settled is not True for state in states) <= 4
    assert sum(is_notable(state.to_json()) for state in states) <= 6


@pytest.mark.parametrize("count", [300, 3000])
def test_a_run_that_gets_slower_to_the_end_never_settles(count: int) -> None:
    growing = [
        [value * (1 + 3 * at / count) for at, value in enumerate(noise(count, seed))]
        for seed in range(40)
    ]
    states = verdicts(growing)
    assert sum(state.settled is False for state in states) >= 30
    assert not any(is_notable(state.to_json()) for state in states if not state.settled)


def test_a_run_that_gets_slower_in_its_last_third_never_settles() -> None:
    states = verdicts(
        [[v * (1 + 2 * (at > 700)) for at, v in enumerate(noise(1000, seed))] for seed in range(20)]
    )
    assert sum(state.settled is False for state in states) >= 18


def test_a_cold_start_is_found_and_its_figures_stand_apart() -> None:
    cold = [[v + 900 * (at < 40) for at, v in enumerate(noise(400, seed))] for seed in range(20)]
    for state in verdicts(cold):
        assert state.settled
        assert 35 <= state.early <= 120
        assert state.from_s == pytest.approx(state.early / 10)
        assert state.requests == 400 - state.early
        assert state.metrics["ttft_ms"]["count"] == state.requests
        assert state.metrics["tpot_ms"]["count"] == 0
        assert is_notable(state.to_json())
        assert state.shift == pytest.approx(0.9, abs=0.25)
        span_s = 39.9 + 1 - state.from_s
        assert state.requests_per_s == pytest.approx(state.requests / span_s)
        assert state.output_tokens_per_s == pytest.approx(4 * state.requests / span_s)


def test_a_difference_that_hardly_matters_is_not_spoken_of() -> None:
    state = found([100 + at % 7 + 30 * (at < 20) for at in range(1000)])
    assert (state.settled, state.early) == (True, 20)
    assert 0 < state.shift < 0.05
    assert not is_notable(state.to_json())


@pytest.mark.parametrize(("rise_ms", "settled"), [(14, True), (40, False)])
def test_a_drift_by_less_than_a_twentieth_is_none(rise_ms: float, settled: bool) -> None:
    """A quarter of the rise lies between the means of the third and the fourth quarter."""
    assert found([100 + at % 3 + rise_ms * at / 600 for at in range(600)]).settled is settled


def test_too_few_requests_tell_nothing() -> None:
    assert found(noise(99, 0)).settled is None
    assert found(noise(100, 0)).settled is not None
    nothing: dict[str, list[float]] = {name: [] for name in COLUMNS}
    assert find_steady_state(nothing) is None
    assert find_steady_state(columns([math.nan] * 200)) is None


def test_values_all_alike_are_steady() -> None:
    assert found([0.0] * 200).settled
    assert found([7.0] * 200).settled


@pytest.mark.parametrize(
    ("options", "batched", "meant"),
    [
        ({"arrivals": "closed"}, False, True),
        ({"arrivals": "poisson", "rate": "5"}, False, True),
        ({"arrivals": "poisson", "rate": 2.5}, False, True),
        ({"arrivals": "poisson", "rate": "2:30,10"}, False, False),
        ({"arrivals": "poisson", "rate": "2-10:30"}, False, False),
        ({"arrivals": "trace", "trace": "a.jsonl"}, False, False),
        ({"arrivals": "closed"}, True, False),
        ({}, False, True),
    ],
)
def test_only_one_load_all_the_time_is_meant_to_be_steady(
    options: dict[str, Any], batched: bool, meant: bool
) -> None:
    assert is_meant_steady(options, batched) is meant


HEAD = "request_id,outcome,scheduled_s,end_s,ttft_ms,tpot_ms,e2e_ms,output_tokens\n"


def written(path: Path, count: int) -> Path:
    rows = [f"{at},ok,{at},{at + 1},{at}.5,,9,\n" for at in range(count)]
    path.write_text(HEAD + "x,http_error,3,4,,,,\n" + "".join(rows))
    return path


def due_of_ok(file: Path, reset_s: float | None = None, warmup_s: float = 0.0) -> list[float]:
    found = Requests.of(read_requests(file), reset_s, warmup_s)
    assert np.isnan(found.number("tpot_ms")).all()
    return list(found.number("scheduled_s")[found.ok])


def test_only_ok_requests_that_count_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "requests.csv", 20)
    assert due_of_ok(file, reset_s=8.0, warmup_s=10.0) == list(range(10, 20))
    assert due_of_ok(file, reset_s=8.0) == list(range(7, 20))


def test_of_very_many_requests_an_even_sample_stands_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady_state, "MOST_REQUESTS", 100)
    requests = Requests.of(read_requests(written(tmp_path / "requests.csv", 1000)))
    state = requests.steady_state({}, batched=False)
    assert state is not None
    assert state.requests == 63 * 16 == pytest.approx(1000, abs=16)


def test_a_warmup_found_in_a_sample_is_told_in_requests() -> None:
    sample = columns([v + 900 * (at < 40) for at, v in enumerate(noise(400, 3))])
    one, eight = find_steady_state(sample), find_steady_state(sample, 8)
    assert one is not None
    assert eight is not None
    assert (eight.early, eight.requests) == (8 * one.early, 8 * one.requests)
    assert eight.from_s == one.from_s
    assert eight.requests_per_s == pytest.approx(8 * (one.requests_per_s or 0))
