"""What the study of fleets says, of runs made by hand."""

import csv
import json
from pathlib import Path

from study_cells import Made, cell, noisy

from dashboards.studies.answer import StudyAnswer
from dashboards.studies.catalog import FLEET
from dashboards.studies.cell import Cells, StudyCell
from dashboards.studies.fleet import (
    by_load,
    fits,
    hot,
    policy,
    predicted,
    seats,
    shared,
    system,
    three,
)
from dashboards.studies.study import read_plan
from loadgen.targets.settings import ROUTERS

REPEATS = (1, 2, 3)


def said(answer: StudyAnswer) -> str:
    return " ".join(answer.sentences)


def made(
    folder: Path, part: str, router: str, ttft_ms: float, computed: float, **settings: object
) -> list[StudyCell]:
    figures = {"computed_prompt_tokens": computed, "context_affinity": settings.pop("affinity", 1)}
    rate = settings.pop("rate", 10.0)
    target = settings.pop("target", "vllm-fleet")
    return [
        cell(
            folder,
            part,
            Made(noisy(ttft_ms, 0.02, seed), every_s=1 / float(str(rate))),
            seed,
            figures={**figures, "requests_per_s": rate},  # type: ignore[dict-item]
            **{"router": router, "target": target, "kv_tokens": 6144, "replicas": 2, **settings},
        )
        for seed in REPEATS
    ]


def test_routers_are_told_by_what_is_computed_and_against_turns(tmp_path: Path) -> None:
    cells = Cells(
        (
            *made(tmp_path, "policy", "round_robin", 400, 60_000),
            *made(tmp_path, "policy", "cache_aware", 200, 30_000),
            *made(tmp_path, "policy", "", 190, 20_000, target="vllm", kv_tokens=12288),
        )
    )
    answer = policy(cells)
    assert answer.short == (
        "cache_aware computes least and round_robin most, 2.0 times as many prompt tokens:"
        " 30,000 with cache_aware and 60,000 with round_robin."
    )
    assert "One engine with the 12,288 tokens of both computes 20,000." in said(answer)
    assert "comes 2.0 times as fast with cache_aware" in said(answer)


def test_no_router_computes_both_least_and_most(tmp_path: Path) -> None:
    computed = {"round_robin": 10_000, "cache_aware": 10_050, "consistent_hash": 10_150}
    cells = [each for name in computed for each in made(tmp_path, "fits", name, 9, computed[name])]
    short = fits(Cells(tuple(cells))).short
    assert short.startswith("round_robin and cache_aware compute least and consistent_hash most")


def test_where_turns_win_they_are_said_to(tmp_path: Path) -> None:
    cells = Cells(
        (
            *made(tmp_path, "hot", "round_robin", 100, 9_000, rate=20.0, affinity=0.5),
            *made(tmp_path, "hot", "consistent_hash", 190, 8_000, rate=11.0),
        )
    )
    text = said(hot(cells))
    assert "are 20.0 with round_robin and 11.0 with consistent_hash; most are answered" in text
    assert "answered with round_robin." in text
    assert "50 % with round_robin and 100 % with consistent_hash" in text
    assert "takes 1.9 times as long with consistent_hash" in text


def test_a_full_engine_is_told_by_requests_a_second(tmp_path: Path) -> None:
    cells = Cells(
        (
            *made(tmp_path, "seats", "round_robin", 500, 9_000, rate=4.5, affinity=0.5),
            *made(tmp_path, "seats", "cache_aware", 900, 8_000, rate=2.5),
        )
    )
    answer = seats(cells)
    assert "4.5 with round_robin and 2.5 with cache_aware; most are answered" in answer.short
    assert "takes 1.8 times as long with cache_aware" in said(answer)


def test_of_rates_that_are_as_high_none_is_called_the_highest(tmp_path: Path) -> None:
    cells = Cells(
        (
            *made(tmp_path, "seats", "round_robin", 500, 9_000, rate=4.5),
            *made(tmp_path, "seats", "cache_aware", 500, 8_000, rate=4.5),
        )
    )
    short = seats(cells).short
    assert "there is no evidence that round_robin answers more than cache_aware." in short
    assert "most" not in short
    one = seats(Cells(tuple(made(tmp_path, "seats", "round_robin", 500, 9_000)[:1]))).short
    assert one.endswith("requests a second are 10.0 with round_robin.")


def test_all_routers_that_compute_as_few_or_as_many_tokens_are_named(tmp_path: Path) -> None:
    tokens = {"cache_aware": 30_000, "consistent_hash": 30_100, "random": 60_000}
    cells = [each for name in tokens for each in made(tmp_path, "fits", name, 400, tokens[name])]
    short = fits(Cells(tuple(cells))).short
    assert short.startswith("cache_aware and consistent_hash compute least and random most, 2.0")
    level = fits(Cells(tuple(cells[:6]))).short
    assert level == (
        "Prompt tokens computed: 30,000 with cache_aware and 30,100 with consistent_hash."
    )


def test_with_a_system_prompt_it_is_told_where_contexts_went(tmp_path: Path) -> None:
    cells = Cells(
        (
            *made(tmp_path, "system", "round_robin", 500, 60_000, affinity=0.5),
            *made(tmp_path, "system", "cache_aware", 500, 90_000, affinity=0.75),
        )
    )
    text = said(system(cells))
    assert "round_robin computes least and cache_aware most" in text
    assert "50 % with round_robin and 75 % with cache_aware" in text


def test_routers_are_told_by_load_beside_the_cells_of_another_part(tmp_path: Path) -> None:
    cells = Cells(
        (
            *made(tmp_path, "policy", "round_robin", 400, 60_000, users=8),
            *made(tmp_path, "policy", "cache_aware", 200, 30_000, users=8),
            *made(tmp_path, "policy", "random", 400, 50_000, users=8),
            *made(tmp_path, "load", "round_robin", 900, 61_000, users=32),
            *made(tmp_path, "load", "cache_aware", 900, 31_000, users=32),
        )
    )
    answer = by_load(cells)
    assert answer.short == (
        "Prompt tokens computed: 60,000 with 8 users at once and 61,000 with 32 users at once"
        " (round_robin); 30,000 with 8 users at once and 31,000 with 32 users at once"
        " (cache_aware)."
    )
    text = said(answer)
    assert "Of 8 users at once, against engines that take turns, the first token comes" in text
    assert "Of 32 users at once, against engines that take turns: with cache_aware (" in text
    assert "random" not in text


def test_a_shared_tier_stands_beside_engines_as_they_are(tmp_path: Path) -> None:
    cells = Cells(
        tuple(
            each
            for target, tokens in (("vllm-fleet", 60_000), ("vllm-lmcache-fleet", 20_000))
            for router, factor in (("round_robin", 1.0), ("cache_aware", 0.5))
            for each in made(
                tmp_path, "shared", router, tokens / 100, tokens * factor, target=target
            )
        )
    )
    text = said(shared(cells))
    assert "With one LMCache behind both, 20,000 prompt tokens are computed in turn" in text
    assert "With one LMCache behind both, the first token comes 3.0 and 3.0 times as fast" in text


def test_another_engine_and_room_for_everything(tmp_path: Path) -> None:
    two = made(tmp_path, "policy", "round_robin", 400, 60_000)
    more = made(tmp_path, "three", "round_robin", 300, 70_000, replicas=3)
    answer = three(Cells((*two, *more)))
    assert "60,000 with 2 engines and 70,000 with 3 engines (round_robin)" in answer.short
    assert "Prompt tokens computed: 60,000 with round_robin." in fits(Cells(tuple(two))).short


def test_hits_are_predicted_engine_by_engine(tmp_path: Path) -> None:
    (one,) = made(tmp_path, "policy", "round_robin", 400, 60_000)[:1]
    rows = list(csv.DictReader((one.run / "requests.csv").open()))
    for number, row in enumerate(rows):
        row |= {"engine": f"e-{number % 2 + 1}", "context_id": "same"}
    with (one.run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    description = json.loads((one.run / "run.json").read_text())
    target = {"usable_tokens": 6144, "block_size": 128}
    (one.run / "run.json").write_text(json.dumps({**description, "target": target}))
    engines = {"replicas": {"engines": {"e-1": {}, "e-2": {}}}}
    (one.run / "summary.json").write_text(json.dumps(engines))
    answer = predicted(Cells((one,)))
    assert answer.short.startswith("From the order of requests at each engine the share")
    ((_, _, share, measured, _),) = answer.tables[0].rows
    assert (share, measured) == ("87 %", "50 %")


def test_every_router_is_measured() -> None:
    plan = read_plan(FLEET, quick=False)
    cells = plan.parts["policy"].cells
    assert {each["router"] for each in cells if "router" in each} == set(ROUTERS)
    assert read_plan(FLEET, quick=True).runs < plan.runs / 2
