"""Which questions `make bench-advise` asks, and what it counts as right."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import advise_bench
import pytest
from advise_bench import (
    SIZES,
    WITHOUT_A_QUEUE,
    WORKLOADS,
    Question,
    asked,
    definition,
    given_cells,
    limit_between,
    smallest,
    sweep_cells,
    verdicts,
    workload_of,
)

from loadgen.sweep.definition import read_definition
from loadgen.sweep.matrix import cells_of
from loadgen.twin.advice import Advice, SizeTried
from loadgen.twin.advise import parse_objective

LIMIT = parse_objective("ttft_ms.mean<=100")
TRAFFIC = ("a", 0, False)


def by_size(monkeypatch: pytest.MonkeyPatch, *values: float) -> Mapping[int, Path]:
    """As if these had been measured."""
    monkeypatch.setattr(advise_bench, "measured", lambda run, limit: float(run.name))
    return {size: Path(str(value)) for size, value in zip(SIZES, values, strict=True)}


def test_the_sweep_has_every_size_and_the_given_runs_other_requests(tmp_path: Path) -> None:
    for name, cells, repeats in (("all", sweep_cells(), 2), ("given", given_cells(), 1)):
        (tmp_path / name).write_text(definition(f"bench-{name}", cells, repeats))
    planned = cells_of(read_definition(tmp_path / "all"))
    given = cells_of(read_definition(tmp_path / "given"))
    assert len(planned) == (2 * len(WORKLOADS) - len(WITHOUT_A_QUEUE)) * len(SIZES)
    axes = [{key: str(value) for key, value in each.axes.items()} for each in planned]
    assert {workload_of(each) for each in axes} == set(WORKLOADS)
    assert not {each.seed(1) for each in given} & {each.seed(n) for each in planned for n in (1, 2)}
    assert len(given) == len(WORKLOADS)


def test_right_is_the_smallest_size_that_keeps_it_with_all_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert smallest(by_size(monkeypatch, 200, 90, 110, 80, 70, 60), LIMIT) == SIZES[3]
    assert smallest(by_size(monkeypatch, 90, 90, 90, 90, 90, 90), LIMIT) == SIZES[0]
    limit = limit_between(by_size(monkeypatch, 400, 0, 0, 0, 0, 100), "ttft_ms.p95")
    assert limit is not None
    assert limit.text == "ttft_ms.p95<=200"
    assert limit_between(by_size(monkeypatch, 110, 0, 0, 0, 0, 100), "ttft_ms.p95") is None


def advice_of(values: Mapping[int, tuple[float, float, float]]) -> Advice:
    nothing: Any = None
    tried = [
        SizeTried(size, False, nothing, value, (low, high))
        for size, (low, value, high) in values.items()
    ]
    return Advice(LIMIT, tuple(tried))


def test_a_wrong_pick_is_flagged_only_where_an_interval_holds_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = by_size(monkeypatch, 200, 95, 90, 80, 70, 60)
    sure = {
        size: (0.9 * value, value, 1.1 * value)
        for size, value in zip(SIZES, (200.0, 120.0, 70.0, 60.0, 50.0, 40.0), strict=True)
    }
    said = asked(TRAFFIC, found, LIMIT, advice_of(sure))
    assert (said.right, said.picked, said.steps, said.flagged) == (SIZES[1], SIZES[2], 1, False)
    doubtful = {**sure, SIZES[1]: (95.0, 120.0, 140.0)}
    assert asked(TRAFFIC, found, LIMIT, advice_of(doubtful)).flagged
    never = dict.fromkeys(SIZES, (200.0, 210.0, 220.0))
    assert asked(TRAFFIC, found, LIMIT, advice_of(never)).picked is None


def test_goals_are_counted_as_they_are_told() -> None:
    right = Question("a", 0, False, LIMIT, SIZES[1], SIZES[1], False)
    near, far = replace(right, picked=SIZES[2], flagged=True), replace(right, picked=SIZES[4])
    none = replace(right, picked=None)
    assert [reached for _, reached in verdicts([right] * 9 + [near], 0.1)] == [True] * 3
    assert [reached for _, reached in verdicts([right] * 8 + [far] * 2, 0.2)] == [False] * 3
    assert (
        "in 1 of 2 questions, and at most one step from it in 1"
        in next(iter(verdicts([right, none], 0.1)))[0]
    )
