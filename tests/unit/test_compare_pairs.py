"""The same requests on both sides: pair by pair, with exact counts, and only where it is proven."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from compare_runs import run_of

from loadgen.compare import wording
from loadgen.compare.comparison import compare
from loadgen.compare.gate import parse_gate
from loadgen.compare.metrics import parse_statistic
from loadgen.compare.pairs import paired_blocks
from loadgen.compare.run import ComparedRun, Prompt
from loadgen.compare.series import Ratio, RequestMarks, Values
from loadgen.compare.sides import Sides
from loadgen.runs.columns import Floats

REQUESTS, BATCHES = 36, 3
NUMBERS = np.arange(REQUESTS, dtype=np.float64)
MARKS = RequestMarks(NUMBERS, np.arange(REQUESTS) * BATCHES // REQUESTS)
PROMPTS: Mapping[str, Prompt] = {str(n): ("document", f"question {n}", 100.0) for n in NUMBERS}


def batched(values: Floats, cached: float) -> ComparedRun:
    """Three batches; the times of a batch grow while it waits, so that requests are alike."""
    shares = Ratio(np.full(REQUESTS, cached), np.full(REQUESTS, 100.0), REQUESTS, marks=MARKS)
    series = {"ttft_ms": Values(values, MARKS), "cached_share": shares}
    return replace(run_of(), series=series, prompts=PROMPTS)


def waiting(factor: float) -> Floats:
    position = np.arange(REQUESTS) % (REQUESTS // BATCHES) + 1.0
    noise = np.exp(0.03 * np.random.default_rng(1).standard_normal(REQUESTS))
    return np.asarray(factor * 1000 * position * noise)


def test_three_batches_of_the_same_requests_decide() -> None:
    base, new = batched(waiting(1.0), 40.0), batched(waiting(0.37)[::-1], 80.0)
    found = compare(Sides((base,), (new,)), [parse_statistic("ttft_ms.mean")])
    (row,) = found.rows
    assert row.verdict == "better"
    assert wording.change(row).endswith("times as fast)")
    assert wording.verdict(row) == "better, lower in 3 of 3 batches"
    assert [(each.name, each.base, each.new) for each in found.counts] == [
        ("computed_tokens", 2160, 720),
        ("cached_tokens", 1440, 2880),
    ]


@pytest.mark.parametrize("what", ["seed", "prompt"])
def test_what_is_not_proven_to_be_the_same_is_not_paired(what: str) -> None:
    base, new = batched(waiting(1.0), 40.0), batched(waiting(0.37), 80.0)
    if what == "seed":
        new = replace(new, facts={**(new.facts or {}), "seed": "1"})
    else:
        new = replace(new, prompts={**PROMPTS, "3.0": ("document", "question 3.0", 101.0)})
    assert Sides((base,), (batched(waiting(0.37), 80.0),)).send_the_same
    assert not Sides((base,), (new,)).send_the_same


@pytest.mark.parametrize("share", [0.7, 0.4])
def test_a_slower_side_that_sent_fewer_is_paired_on_those_it_sent(share: float) -> None:
    """The requests behind them are shorter, and would make the base look faster than it is."""
    rng, count = np.random.default_rng(5), 200
    sent = int(share * count)
    demand = np.where(np.arange(count) < sent, 400.0, 40.0) * np.exp(rng.standard_normal(count))
    prompts = {str(float(n)): ("document", f"question {n}", 100.0) for n in range(count)}

    def side(values: Floats) -> ComparedRun:
        place = np.arange(len(values))
        marks = RequestMarks(place.astype(np.float64), np.zeros(len(values), dtype=np.int64))
        own = dict(list(prompts.items())[: len(values)])
        return replace(run_of(), series={"ttft_ms": Values(values, marks)}, prompts=own)

    slower = 1.15 * demand[:sent] * np.exp(0.05 * rng.standard_normal(sent))
    sides = Sides((side(demand),), (side(slower),))
    found = compare(sides, [parse_statistic("ttft_ms.mean")])
    (row,) = found.rows
    assert row.change is not None
    if share < 0.5:
        assert not sides.send_the_same
        assert row.change.estimate > 0.5
        said = "only 80 of 200 requests are on both sides: a change is also that of what was"
        assert any(each.startswith(said) for each in found.remarks)
        return
    assert row.verdict == "worse"
    assert row.change.estimate == pytest.approx(0.15, abs=0.02)
    assert row.base is not None
    assert row.new == pytest.approx(row.base * (1 + row.change.estimate)), "of the same requests"
    assert row.samples == (140, 140)
    assert "both sides sent 140 requests: these are compared pair by pair" in found.remarks


def test_a_percentile_that_one_queue_makes_is_less_sure_than_one_of_many_moments() -> None:
    rng, count = np.random.default_rng(6), 240
    marks = RequestMarks(np.arange(float(count)), np.zeros(count, dtype=np.int64))

    def freedom(slow: slice) -> float:
        sides = []
        for _ in range(2):
            values = 100 * np.exp(0.05 * rng.standard_normal(count))
            values[slow] *= 5
            sides.append(Values(values, marks))
        blocks = paired_blocks(*sides, parse_statistic("ttft_ms.p95"), "log")
        assert blocks is not None
        return blocks.freedom

    assert freedom(slice(100, 112)) == 1
    assert freedom(slice(5, None, 21)) > 8


def independent(rng: np.random.Generator, batches: int, size: int) -> Values:
    count = batches * size
    marks = RequestMarks(np.arange(float(count)), np.arange(count) // size)
    return Values(100 * np.exp(0.5 * rng.standard_normal(count)), marks)


@pytest.mark.parametrize(("statistic", "size"), [("p95", 8), ("p99", 20), ("p50", 8)])
def test_percentiles_of_identical_batched_runs_rarely_differ(statistic: str, size: int) -> None:
    rng, wanted, misses = np.random.default_rng(7), parse_statistic(f"ttft_ms.{statistic}"), 0
    for _ in range(200):
        sides = independent(rng, 30, size), independent(rng, 30, size)
        blocks = paired_blocks(*sides, wanted, "log")
        assert blocks is not None
        interval = blocks.interval(0.95)
        misses += not interval.low <= 0 <= interval.high
    assert misses <= 20, "10 are expected, and 40 or more where a batch's own p99 is taken"


def test_a_percentile_that_few_requests_of_batches_reach_is_not_paired() -> None:
    rng, wanted = np.random.default_rng(8), parse_statistic("ttft_ms.p99")
    few, enough = ([independent(rng, 30, size) for _ in range(2)] for size in (8, 20))
    assert paired_blocks(*few, wanted, "log") is None
    assert paired_blocks(*enough, wanted, "log") is not None


def test_a_gate_does_not_pass_on_data_that_could_see_nothing() -> None:
    rng = np.random.default_rng(2)
    noisy, clear = (100 * np.exp(sigma * rng.standard_normal((2, 40))) for sigma in (1.5, 0.02))
    limit = parse_gate("ttft_ms.mean<=+100%"), parse_gate("ttft_ms.mean<=+10%")
    few = Sides((run_of(clear[0]),), (run_of(np.where(noisy[1] > 300, 300, noisy[1]) * 0.9),))
    sure = Sides((run_of(clear[0]),), (run_of(clear[1]),))
    assert compare(few, limits=limit[1]).exit_code == 4
    (passed,) = compare(sure, limits=limit[1]).judgements
    assert (passed.outcome, passed.times) == ("passed", 1)
    assert "sees changes from" in wording.finding(passed)


@pytest.mark.parametrize(
    ("samples", "limit", "said"),
    [
        (
            12,
            "ttft_ms.mean<=+10%",
            "12 usable samples, 30 needed; sees no change of any size: make",
        ),
        (12, "ttft_ms.mean<=+10%", "make runs 3 times as long, or 5 repeats"),
        (12, "ttft_ms.p95<=+10%", "any size: make runs 9 times as long"),
        (60, "ttft_ms.p95<=+10%", "any size: make runs 2 times as long, or 5 repeats"),
        (0, "ttft_ms.mean<=+10%", "0 usable samples, 30 needed; sees no change of any size"),
    ],
)
def test_too_few_samples_see_nothing_and_tell_how_many_would(
    samples: int, limit: str, said: str
) -> None:
    values = 100 + np.arange(60.0)
    sides = Sides((run_of(values),), (run_of(values[:samples]),))
    (judged,) = compare(sides, limits=parse_gate(limit)).judgements
    assert judged.outcome == "undecided"
    assert said in wording.finding(judged)


def test_of_totals_and_of_a_figure_of_0_no_length_is_said_to_help() -> None:
    total = ComparedRun("run", {}, totals={"ttft_ms.mean": (100.0, 400)})
    (judged,) = compare(
        Sides((total,), (total,)), limits=parse_gate("ttft_ms.mean<=+1%")
    ).judgements
    assert (judged.outcome, judged.seen, judged.times) == ("undecided", None, None)
    assert "totals alone have no interval, however long the runs" in wording.finding(judged)
    nothing = run_of(np.zeros(400)), run_of(np.ones(400))
    (judged,) = compare(
        Sides(nothing[:1], nothing[1:]), limits=parse_gate("ttft_ms.mean<=+1%")
    ).judgements
    assert "no figure is a number of times 0" in wording.finding(judged)


def test_a_proof_needs_the_whole_interval() -> None:
    values = 100 * np.exp(0.2 * np.random.default_rng(3).standard_normal(200))
    sides = Sides((run_of(values),), (run_of(np.roll(values, 100)),))
    limits = parse_gate("ttft_ms.mean<=+1%")
    assert compare(sides, limits=limits).exit_code == 0
    assert compare(sides, limits=limits, needs_proof=True).exit_code == 4


def test_a_small_change_between_single_runs_is_said_to_be_one() -> None:
    values = 100 * np.exp(0.01 * np.random.default_rng(4).standard_normal(300))
    sides = Sides((run_of(values),), (run_of(1.04 * np.roll(values, 100)),))
    (row,) = compare(sides, [parse_statistic("ttft_ms.mean")]).rows
    assert row.verdict == "single runs"
    assert "single runs of a machine that differs by 1.4 %" in wording.verdict(row)
