"""Advice: highest rates, what fits on a GPU, what a tier adds; of runs and of planned loads."""

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_twin_planned import BATCHES, MODEL, SHAPE, Load, load, twin

from loadgen.cli.advise import advise_command, largest_cache, overturning
from loadgen.cli.main import main
from loadgen.cli.simulate import planned_simulation
from loadgen.errors import UsageError
from loadgen.locality.kv_format import weights_bytes
from loadgen.twin.advice import Advice, SizeTried
from loadgen.twin.advise import (
    AdviceLoad,
    AdviceOptions,
    advise,
    parse_objective,
    predicted_value,
)
from loadgen.twin.highest_rate import HighestRate, RatedLoad, find_rate
from loadgen.twin.model import TwinModel
from loadgen.twin.planned import PlannedLoad
from loadgen.twin.predict import predict_load, with_edges
from loadgen.twin.sending import Pace
from loadgen.twin.serve import OfferedLoad, ServedRequest
from loadgen.twin.shape_of import CalibratedEngine
from loadgen.workload.workload import Workload

__all__ = ["twin"]
CONFIG = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "dtype": "bfloat16",
}
BYTES_PER_TOKEN = 2 * 4 * 2 * 64 * 2


@pytest.mark.parametrize("truth", [0.4, 3.0, 70.0])
@pytest.mark.parametrize("begin", [0.5, 3.0, 40.0])
def test_the_highest_rate_is_found_from_anywhere(truth: float, begin: float) -> None:
    asked: list[float] = []

    def judge(offered: object) -> tuple[float, int, float]:
        assert isinstance(offered, RatedLoad)
        asked.append(offered.units_per_s)
        return offered.units_per_s, 0, 1000.0

    found = find_rate(load(10), judge, truth, begin, seed=1).per_s
    assert truth / 1.06 < found <= truth
    assert len(asked) < 20
    assert find_rate(load(10), lambda _: (9.0, 0, 1e3), 1.0, begin, seed=1).per_s == 0.0
    assert find_rate(load(10), lambda _: (0.0, 1, 1e3), 1.0, begin, seed=1).per_s == 0.0


@pytest.mark.parametrize("begin", [0.5, 9.0, 400.0])
@pytest.mark.parametrize("bound_s", [5.0, 30.0])
def test_no_rate_is_found_above_what_can_be_served(bound_s: float, begin: float) -> None:
    """One after the other at 10 a second: of so few requests none waits for long."""

    def judge(offered: object) -> tuple[float, int, float]:
        assert isinstance(offered, RatedLoad)
        waits_s = max(0.0, 300 * (1 / 10 - 1 / offered.units_per_s))
        return waits_s, 0, min(10.0, offered.units_per_s)

    assert 10 / 1.06 < find_rate(load(10), judge, bound_s, begin, seed=1).per_s <= 10


def test_a_loose_limit_gives_no_rate_above_that_of_a_burst() -> None:
    advice = advise(
        MODEL,
        about(),
        parse_objective("ttft_ms.p95<=90000"),
        AdviceOptions((1600,), with_rates=True),
    )
    burst = predict_load(MODEL, RatedLoad(reusing(), 1e6, 0), replace(SHAPE, usable_blocks=100))
    found = advice.candidates[0].rate
    assert found is not None
    assert burst.figures["requests_per_s"] / 1.06 < found.per_s <= burst.figures["requests_per_s"]


def test_a_rated_load_is_a_poisson_process_of_the_same_requests() -> None:
    offered = RatedLoad(load(200), 4.0, seed=3)
    units = list(offered.units)
    assert [unit.requests for unit in units] == [unit.requests for unit in load(200).units]
    assert units[-1].due_s == pytest.approx(200 / 4.0, rel=0.25)
    assert offered.pace.is_open


def test_a_load_of_few_units_comes_again_with_prompts_that_share_what_they_shared() -> None:
    shape = replace(SHAPE, usable_blocks=4000)
    few = Load(Pace(starts_s=(0.0,)), reusing().units[:8])
    units = list(RatedLoad(few, 4.0, seed=3).units)
    requests = [each for unit in units for each in unit.requests]
    assert len({each.name for each in requests}) == len({unit.number for unit in units}) == 100
    assert len({each.prompt for each in requests}) == 100
    assert {each.prompt[:160] for each in requests} == {(n,) * 160 for n in range(1, 5)}
    ends = predict_load(MODEL, RatedLoad(few, 4.0, 3), shape).figures["computed_prompt_tokens"]
    assert ends == 4 * 160 + 100 * 20
    alone = list(RatedLoad(load(1), 4.0, seed=3).units)
    assert len({unit.requests[0].prompt[:16] for unit in alone}) == 100, "nobody shared it"


def test_a_rated_conversation_waits_for_its_turns_and_comes_again_as_another() -> None:
    turns = [
        replace(unit, session=str(unit.number % 5), requests=(replace(each, prompt=prompt),))
        for unit in load(10).units
        for each in unit.requests
        for prompt in [(1 + unit.number % 5,) * (80 if unit.number < 5 else 160)]
    ]
    offered = RatedLoad(Load(Pace(starts_s=(0.0,)), turns), 500.0, seed=3)
    served: list[ServedRequest] = []
    predict_load(MODEL, offered, replace(SHAPE, usable_blocks=4000), on_served=served.append)
    assert sum(each.tokens.cached or 0 for each in served) == 50 * 80
    talks: dict[str, list[ServedRequest]] = {}
    for each in sorted(served, key=lambda each: each.sent_s):
        talks.setdefault(each.unit.session, []).append(each)
    assert len(talks) == 50
    assert all(second.sent_s >= first.end_s for first, second in talks.values())


def reusing() -> Load:
    """Four contexts in turn, one user after the other: with room for all of them nothing but the
    questions is computed."""
    plain = load(80, starts_s=(0.0, 0.0))
    units = [
        type(unit)(
            unit.number,
            tuple(
                type(each)(each.name, f"c{n % 4}", (1 + n % 4,) * 160 + (9 + n,) * 20)
                for each in unit.requests
            ),
            unit.offsets_s,
        )
        for n, unit in enumerate(plain.units)
    ]
    return Load(Pace(starts_s=(0.0, 0.0)), units)


def about(bytes_per_token: int | None = None) -> AdviceLoad:
    return AdviceLoad(reusing(), CalibratedEngine(SHAPE, (), None, bytes_per_token), ["kvswarm"])


def test_a_larger_cache_holds_a_higher_rate_and_the_reason_is_told() -> None:
    limit = parse_objective("ttft_ms.p95<=90")
    options = AdviceOptions((480, 1600), with_rates=True, price=3.6)
    advice = advise(MODEL, about(), limit, options)
    rates = {
        (each.kv_tokens, each.by_context): each.rate.per_s
        for each in advice.candidates
        if each.rate is not None
    }
    assert rates[1600, False] > 1.5 * rates[480, False] > 0
    large = next(each for each in advice.candidates if each.kv_tokens == 1600)
    assert advice.cost(large) == pytest.approx(1000 / rates[1600, False])
    told = predict_load(MODEL, RatedLoad(reusing(), rates[1600, False], 0), SHAPE)
    assert told.figures["ttft_p95_ms"] <= limit.bound or SHAPE.usable_blocks < 100
    said = " ".join(advice.sentences())
    assert f"The highest rate that keeps it is {max(rates.values()):.3g} requests/s" in said
    assert "of reused tokens come back within" in said
    assert "give --model" in said


def test_the_interval_of_a_rate_is_what_faster_and_slower_servers_hold() -> None:
    sure = replace(MODEL, speed_sd=0.05, runs=8, windows=0, intervals={})
    factor, limit = sure.speed_factor, parse_objective("ttft_ms.p95<=100")

    def rated(model: TwinModel) -> HighestRate:
        options = AdviceOptions((1600,), with_rates=True)
        best = advise(model, about(), limit, options).fastest
        assert best is not None
        assert best.rate is not None
        return best.rate

    found = rated(sure)
    slow, fast = (rated(sure.slower(each)).per_s for each in (factor, 1 / factor))
    assert slow < found.per_s / factor**1.5, "the limit does not scale with the server"
    assert found.interval[0] <= slow * 1.05
    assert found.interval[1] >= fast / 1.05
    wider = rated(replace(sure, figure_sd={"ttft_p95_ms": 0.1}))
    assert wider.interval[0] < found.interval[0]


def advice_of(times_ms: dict[tuple[int, bool], float]) -> Advice:
    """By size and order, for a limit of 500 ms."""
    served = predict_load(MODEL, load(2, starts_s=(0.0,)), SHAPE)
    tried = [
        SizeTried(size, order, served, value, (value, value))
        for (size, order), value in times_ms.items()
    ]
    return Advice(parse_objective("ttft_ms.p95<=500"), tuple(tried))


@pytest.mark.parametrize(
    ("per_s", "named", "apart"),
    [
        ((3.0, 3.1, 1.0, 1.0), "3 requests/s, with 5,120 tokens first come", "5%"),
        ((2.7, 3.0, 3.0, 2.6), "3 requests/s, with 5,120 tokens by context", "15%"),
        ((1.0, 3.0, 1.0, 1.0), "3 requests/s, with 10,240 tokens first come", ""),
        ((0.0, 0.0, 0.0, 0.0), "", ""),
    ],
)
def test_rates_that_only_chance_sets_apart_are_alike(
    per_s: tuple[float, ...], named: str, apart: str
) -> None:
    sizes = [(size, order) for order in (False, True) for size in (5120, 10_240)]
    for value in (400.0, 900.0):
        plain = advice_of(dict.fromkeys(sizes, value))
        told = zip(plain.candidates, map(HighestRate, per_s), strict=True)
        rated = tuple(replace(each, rate=rate) for each, rate in told)
        said = " ".join(replace(plain, candidates=rated).sentences())
        assert named in said
        assert (f"Rates up to {apart} apart are alike" in said) == bool(apart)
        assert ("No rate keeps ttft_ms.p95<=500" in said) == (not named)
        assert ("Fewer users, a lower rate" in said) == (value > 500 and bool(named))


def test_more_cache_is_no_saving_and_short_times_have_digits() -> None:
    times = {(5120, False): 8.44, (10_240, False): 8.0, (5120, True): 900.0}
    said = " ".join(advice_of({**times, (10_240, True): 400.0}).sentences())
    assert "(the least that was tried) keep ttft_ms.p95<=500: 8.44 ms" in said
    assert "An order by context needs more cache here." in said


@pytest.mark.parametrize("first_come", [480.0, 900.0])
def test_a_size_that_keeps_below_one_that_does_not_is_told_with_it(first_come: float) -> None:
    times = {(5120, False): first_come, (5120, True): 470.0, (10_240, True): 501.0}
    advice = advice_of({**times, (10_240, False): 503.0 if first_come < 500 else 480.0})
    said = " ".join(advice.sentences())
    assert "By context, 5,120 tokens of cache keep ttft_ms.p95<=500 (470 ms)" in said
    assert "but 10,240 do not (501 ms): measure both." in said
    for wrong in ("No size", "no cache", "The order"):
        assert wrong not in said
    assert "Of 2 requests no p95 is known, which needs 20" in said
    told = {(each.kv_tokens, each.by_context) for each in advice.answers}
    assert told >= {(5120, True), (10_240, True)}
    assert ((5120, False) in told) == (first_come < 500)


def test_a_tier_adds_where_its_link_is_faster_than_computing() -> None:
    limit = parse_objective("ttft_ms.mean<=1")
    advice = advise(MODEL, about(1000), limit, AdviceOptions((480,)))
    assert advice.tier is not None
    token_s = MODEL.step.prefill_token_s + MODEL.step.attended_s * 160 / 2
    assert advice.tier.break_even == pytest.approx(1000 / token_s)
    assert "at 1,000 bytes a token and 160 reused tokens a prompt" in " ".join(advice.sentences())
    fast, even, slow = advice.tier.tried
    assert fast.value < even.value < slow.value
    assert fast.value < advice.tier.below.value < slow.value
    assert "a tier of" in " ".join(advice.sentences())
    assert not any(each.tier_tokens for each in advice.answers), "it keeps no limit"


def test_a_token_whose_time_is_open_is_no_token_whose_bytes_are() -> None:
    free = replace(MODEL, step=replace(MODEL.step, prefill_token_s=0.0, attended_s=0.0))
    limit, options = parse_objective("ttft_ms.mean<=1"), AdviceOptions((480,))
    said = " ".join(advise(free, about(1000), limit, options).sentences())
    assert "What a tier adds needs the time of a prompt token, which the twin leaves open" in said
    assert "--model" not in said


def test_a_tier_that_keeps_what_a_cache_misses_is_a_run_to_make() -> None:
    strict, options = parse_objective("ttft_ms.mean<=1"), AdviceOptions((480,))
    tried = advise(MODEL, about(1000), strict, options)
    assert tried.tier is not None
    between = (tried.tier.best.value + tried.tier.below.value) / 2
    advice = advise(MODEL, about(1000), parse_objective(f"ttft_ms.mean<={between:.3f}"), options)
    found = overturning(advice, ["kvswarm", "run", "batched", "--l1-gb=9", "--seed", "7"])
    assert found is not None
    behind = [words for each, words in found if each.tier_tokens]
    *words, flag, size_gb = behind[0]
    said = "kvswarm run batched --seed 7 --target vllm-offload --kv-tokens 480"
    assert [" ".join(words), flag, len(behind)] == [said, "--l1-gb", 1]
    assert float(size_gb) * 2**30 >= tried.tier.best.tier_tokens * 1000


def test_runs_to_make_have_the_flags_of_the_engine_that_was_recorded() -> None:
    advice = advice_of({(5120, False): 400.0, (5120, True): 900.0})
    argv = ["vllm", "serve", "--kv-cache-dtype", "fp8", "--max-num-seqs", "4", "--port", "1"]
    argv += ["-tp=2"]
    recorded = ["kvswarm", "run", "batched", "--engine-arg=--max_num_seqs=4"]
    found = overturning(advice, recorded, argv)
    assert found is not None
    for _, words in found:
        assert "--engine-arg=--kv-cache-dtype=fp8" in words
        assert "--engine-arg=--tensor-parallel-size=2" in words
        assert sum("seqs" in word for word in words) == 1
        assert not any("port" in word for word in words)


def test_advice_has_the_intervals_of_the_limited_figure_and_of_a_queue() -> None:
    sure = replace(MODEL, speed_sd=0.02, runs=8, windows=0, intervals={})
    unsure = replace(sure, figure_sd={"ttft_p95_ms": 0.3})
    limit = parse_objective("ttft_ms.p95<=900")

    def spread(model: TwinModel, offered: OfferedLoad) -> float:
        found = AdviceLoad(offered, CalibratedEngine(SHAPE, (), None, None), ["kvswarm"])
        options = AdviceOptions(sizes=(SHAPE.usable_blocks * SHAPE.block_size,))
        (each, *_) = advise(model, found, limit, options).candidates
        assert each.interval[0] <= each.value <= each.interval[1]
        return each.interval[1] / each.value

    closed = reusing()
    assert spread(sure, closed) < 1.1 < 1.5 < spread(unsure, closed)
    burst = predict_load(MODEL, RatedLoad(closed, 1e6, 0), SHAPE)
    holds_per_s = burst.figures["requests_per_s"]
    assert spread(sure, RatedLoad(closed, 0.97 * holds_per_s, 0)) > 1.12
    assert spread(sure, RatedLoad(closed, 0.05 * holds_per_s, 0)) < 1.08


def test_users_who_think_are_tried_on_slower_servers_too() -> None:
    sure = replace(MODEL, speed_sd=0.05, runs=8, windows=0, intervals={})
    limit, factor = parse_objective("ttft_ms.p95<=900"), sure.speed_factor
    plain = reusing()
    for gap_s in (0.0, 1e-4, 0.35):
        pace = Pace(starts_s=tuple(0.05 * n for n in range(10)), gaps_s=(gap_s,))
        offered = Load(pace, plain.units)
        found = AdviceLoad(offered, CalibratedEngine(SHAPE, (), None, None), ["kvswarm"])
        (each, *_) = advise(sure, found, limit, AdviceOptions(sizes=(960,))).candidates
        told = predict_load(sure, offered, SHAPE)
        edges = with_edges(told, sure, offered, SHAPE)
        thinks = gap_s > 0.1
        assert told.may_queue(offered) == thinks
        assert (each.interval[1] > factor * each.value * 1.01) == thinks
        grown = edges.intervals["ttft_p95_ms"][1] / told.figures["ttft_p95_ms"]
        assert (grown > factor * 1.01) == thinks
        low, high = edges.intervals["requests_per_s"]
        rate = told.figures["requests_per_s"]
        assert low <= rate / factor < rate * factor <= high


@pytest.mark.parametrize("by_context", [False, True])
def test_where_an_order_keeps_nothing_its_largest_size_could_overturn_that(
    by_context: bool,
) -> None:
    times = {(size, order): 900.0 for size in (5120, 10_240) for order in (False, True)}
    advice = advice_of(times | ({(5120, True): 400.0, (10_240, True): 400.0} if by_context else {}))
    told = [(each.kv_tokens, each.by_context) for each in advice.answers]
    assert told == [(10_240, False), (5120 if by_context else 10_240, True)]


@pytest.mark.parametrize(("lowest", "is_told"), [(480.0, True), (510.0, False)])
def test_a_smaller_size_that_nearly_keeps_it_is_told_and_a_run_to_make(
    lowest: float, is_told: bool
) -> None:
    times = {(5120, False): 530.0, (10_240, False): 400.0}
    plain = advice_of({**times, (5120, True): 400.0, (10_240, True): 400.0})
    first, *others = plain.candidates
    advice = replace(plain, candidates=(replace(first, interval=(lowest, 590.0)), *others))
    said = "5,120 tokens, first come, first served (530 ms"
    assert any(each.startswith(said) for each in advice.sentences()) == is_told
    told = [(each.kv_tokens, each.by_context) for each in advice.answers]
    assert told == [(10_240, False), (5120, True), *([(5120, False)] if is_told else [])]


def test_where_no_size_keeps_it_one_that_nearly_does_is_told() -> None:
    times = {(size, order): 900.0 for size in (5120, 10_240) for order in (False, True)}
    plain = advice_of({**times, (10_240, False): 510.0})
    near = [replace(e, interval=(450.0, 560.0)) if e.value == 510 else e for e in plain.candidates]
    advice = replace(plain, candidates=tuple(near))
    said = [*advice.sentences()]
    assert said[0].startswith("No size that was tried keeps")
    assert said[-1].startswith("10,240 tokens, first come, first served (510 ms")
    assert [(e.kv_tokens, e.by_context) for e in advice.answers] == [
        (10_240, False),
        (10_240, True),
    ]


def test_requests_that_had_waited_beyond_the_limit_count_though_they_had_no_end() -> None:
    paced = load(80, starts_s=(0.0, 0.0, 0.0, 0.0), end_s=1.0, cut_s=1.0)
    found = AdviceLoad(paced, CalibratedEngine(SHAPE, (), None, None), ["kvswarm"])
    told = predict_load(MODEL, paced, SHAPE)
    assert told.cut or told.unsent
    longest_ms = 1000 * float(max(told.open_e2e_s))
    strict = parse_objective(f"e2e_ms.p99<={0.9 * longest_ms:.0f}")
    assert predicted_value(strict, told) > strict.bound
    easy = parse_objective(f"e2e_ms.p99<={2 * longest_ms:.0f}")
    assert predicted_value(easy, told) == pytest.approx(1000 * np.quantile(told.e2e_s, 0.99))
    assert not any(each.keeps(strict) for each in advise(MODEL, found, strict).candidates)


def test_a_long_request_behind_all_by_which_sizes_are_chosen_still_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadgen.twin.advise.MOST_SEEN", 10)
    plain = reusing()
    last = plain.units[-1]
    (request,) = last.requests
    long = replace(request, prompt=request.prompt + (7,) * 200)
    units = [*plain.units[:-1], replace(last, requests=(long,))]
    found = AdviceLoad(Load(plain.pace, units), CalibratedEngine(SHAPE, (), None, None), ["x"])
    advice = advise(MODEL, found, parse_objective("ttft_ms.p95<=90000"))
    assert min(each.kv_tokens for each in advice.candidates) >= len(long.prompt)
    assert "reuse and tier are by the first 10 requests." in " ".join(advice.sentences())


def test_the_least_cache_of_a_workload_is_one_that_its_run_takes(
    twin: Path,
) -> None:
    simulation = planned_simulation(TwinModel.read(twin), BATCHES.split()[:-2], ())
    assert isinstance(simulation.load, PlannedLoad)
    workload = simulation.load.workload
    assert isinstance(workload, Workload)
    found = AdviceLoad(simulation.load, CalibratedEngine(simulation.shape), ["kvswarm"])
    advice = advise(MODEL, found, parse_objective("ttft_ms.p95<=90000"))
    least = min(each.kv_tokens for each in advice.candidates)
    workload.check_fit(least, least)
    told = workload.least_cache_tokens()
    assert told <= least < told + simulation.shape.block_size
    with pytest.raises(UsageError, match=r"question .* and reply"):
        workload.check_fit(told - 1, told - 1)
    assert workload.least_cache_tokens(of_all_documents=True) >= told


def test_no_cache_is_offered_that_does_not_fit() -> None:
    limit = parse_objective("ttft_ms.p95<=90")
    advice = advise(MODEL, about(), limit, AdviceOptions(most_tokens=640))
    assert {each.kv_tokens for each in advice.candidates} <= set(range(641))
    assert "640 tokens fit on the GPU" in " ".join(advice.sentences())
    with pytest.raises(UsageError, match="the longest request needs"):
        advise(MODEL, about(), limit, AdviceOptions(most_tokens=32))
    with pytest.raises(UsageError, match="--kv-tokens 100, 1,600: the longest request needs"):
        advise(MODEL, about(), limit, AdviceOptions((100, 480, 1600), most_tokens=640))


def model_folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def test_the_largest_cache_lies_beside_the_weights(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    attention, gated = 512 * 64 * 2 * (8 + 2), 3 * 512 * 1024
    weights = 2 * (4 * (attention + gated) + 2 * 1000 * 512)
    assert weights_bytes(model) == weights
    (model / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    assert weights_bytes(model) == weights == weights_bytes(model / "config.json")
    left = 0.92 * 2**30 - weights
    assert largest_cache(1.0, model, BYTES_PER_TOKEN) == left // BYTES_PER_TOKEN
    (model / "model.safetensors").write_bytes(b"x" * 1000)
    assert weights_bytes(model) == 1000
    for gpus, copies in ((2, 1), (4, 2)):
        fits = (0.92 * gpus * 2**30 - 1000) // (copies * BYTES_PER_TOKEN)
        assert largest_cache(1.0, model, BYTES_PER_TOKEN, gpus) == fits
    with pytest.raises(UsageError, match="does not hold the weights"):
        largest_cache(1e-7, model, BYTES_PER_TOKEN)


def test_the_command_advises_on_a_workload(
    twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, picture = model_folder(tmp_path / "model"), tmp_path / "frontier.svg"
    words = [*BATCHES.split()[:-2], "--twin", str(twin), "--slo", "ttft_ms.p95<=4000"]
    more = ["--kv-tokens", "5120", "--model", str(model), "--gpu-gb", "1"]
    priced = ["--price-per-gpu-hour", "2", "-o", str(picture)]
    assert advise_command([*words, *more, *priced]) == 0
    said = capsys.readouterr().out
    assert "per million" in said
    assert "fit on the GPU" in said
    assert "Loading KV is faster than computing it from" in said
    ran = "kvswarm run batched --batches 3 --batch-size 4 -u 2 -r 2 --target vllm --kv-tokens"
    assert ran in said
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize("on_cpu", [True, False])
def test_times_of_a_cpu_are_not_told_as_those_of_a_gpu(
    twin: Path, tmp_path: Path, on_cpu: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    told, made = json.loads(twin.read_text()), tmp_path / "twin.json"
    told["engine"]["on_cpu"] = on_cpu
    made.write_text(json.dumps(told))
    words = [*BATCHES.split()[:-2], "--twin", str(made), "--slo", "ttft_ms.p95<=4000"]
    words += ["--kv-tokens", "2560", "--no-rates"]
    model = str(model_folder(tmp_path / "model"))
    for more, asked in ((["--model", model, "--gpu-gb", "1"], True), ([], False)):
        assert advise_command([*words, *more]) == 0
        warned = "--gpu-gb with the twin of an engine on a CPU: times" in capsys.readouterr().out
        assert warned == (on_cpu and asked)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpu-gb", "1"], "--gpu-gb needs the --model"),
        (["--model", "nowhere/x/y"], "no config.json there"),
        (["--price-per-gpu-hour", "-1"], "give more than 0"),
        (["--price-per-gpu-hour", "2", "--no-rates"], "leave out --no-rates"),
        (["-o", "x.txt"], "is no picture"),
        (["--kv-tokens", "few"], "write whole numbers"),
        (["--target", "vllm-offload"], "give vllm or vllm-context"),
        (["--replicas", "4"], "--replicas is not modelled: advice is about one engine"),
        (["--router", "cache_aware"], "--router is not modelled"),
    ],
)
def test_what_advice_cannot_use_is_said(twin: Path, more: Sequence[str], said: str) -> None:
    words = [*BATCHES.split()[:-2], "--twin", str(twin), "--slo", "ttft_ms.p95<=4000"]
    with pytest.raises(UsageError, match=said):
        advise_command([*words, *more])


def test_contexts_need_only_fit_the_largest_cache_that_is_tried(
    twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads(twin.read_text())
    told["engine"]["shape"]["usable_blocks"] = 1280 // told["engine"]["shape"]["block_size"]
    small = tmp_path / "twin.json"
    small.write_text(json.dumps(told))
    words = [*BATCHES.split()[:-2], "--twin", str(small), "--slo", "ttft_ms.p95<=4000"]
    with pytest.raises(UsageError, match="raise --kv-tokens"):
        advise_command([*words, "--no-rates"])
    assert advise_command([*words, "--no-rates", "--kv-tokens", "2560,5120"]) == 0
    assert "--target vllm --kv-tokens 5120" in capsys.readouterr().out


OPTION = re.compile(r"--[a-z][a-z0-9-]+")
HELD = ["--slo", "ttft_ms.p95<=4000"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("advise", [*HELD, "--model", "no/such/folder"]),
        ("advise", [*HELD, "--gpu-gb", "1"]),
        ("advise", [*HELD, "--target", "vllm-offload"]),
        ("advise", [*HELD, "--context-tokens", "9000"]),
        ("simulate", ["--target", "vllm-offload"]),
        ("simulate", ["--target", "vllm-tiered", "--link", "1GB/s"]),
        ("simulate", ["--context-tokens", "9000"]),
        ("tiers", ["--prefill-rate", "9", "--model", "no/such/folder"]),
        ("tiers", []),
        ("curve", ["--plan", "unordered", "--model", "no/such/folder"]),
        ("curve", ["--plan", "replay"]),
    ],
)
def test_a_message_names_only_options_of_its_command(
    twin: Path, command: str, words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = command in ("advise", "simulate")
    before = [*BATCHES.split()[:-2], "--twin", str(twin)] if planned else []
    assert main([command, *before, *words]) == 2
    said = re.sub(r"`[^`]*`", "", capsys.readouterr().err)
    for each in (command, *(["run"] if planned else [])):
        with contextlib.suppress(SystemExit):
            main([each, "--help"])
    assert set(OPTION.findall(said)) <= set(OPTION.findall(capsys.readouterr().out))
    assert said.count("\n") == 1
