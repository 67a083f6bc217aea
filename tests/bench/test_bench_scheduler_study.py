"""The study of random cases: its bound, its words, and that one cut off goes on."""

import csv
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from scheduler_study import FAMILIES, measure, run_case
from scheduler_study_cases import Prompt, StudyCase
from scheduler_study_limits import limits
from scheduler_study_reach import PASSES
from scheduler_study_rows import OURS, SGLANG, STOCK, StudyRow, bound_tokens

from loadgen.twin.engine import EngineShape
from loadgen.twin.ledger import EngineLedger, TwinRequest

ROW = StudyRow(
    family="uniform",
    seed=48,
    fits=False,
    load=0.9,
    order=STOCK,
    tokens=1000,
    mean_s=1.0,
    p99_s=4.0,
    same_order=True,
    bound_tokens=500,
)


def case_rows(mean_of_lpm_s: float, p99_of_lpm_s: float, **values: object) -> list[StudyRow]:
    """One case in which all orders but lpm do what stock does."""
    stock = replace(ROW, **values)
    same = [replace(stock, order=name, bound_tokens=0) for name in (OURS, *PASSES)]
    lpm = replace(stock, order=SGLANG, mean_s=mean_of_lpm_s, p99_s=p99_of_lpm_s, tokens=900)
    return [stock, *same, lpm]


def bound(room: int, *, second_at_s: float) -> int:
    """Of a context of ten blocks asked twice, with eight blocks of another between."""
    prompts = [(1,) * 40 + (5,), (2,) * 32 + (6,), (1,) * 40 + (7,)]
    shape = EngineShape(usable_blocks=room, block_size=4)
    made = tuple(Prompt("", "", each, 1) for each in prompts)
    case = StudyCase("made", 0, shape, made, "none", None, (1.0,) * 3)
    ledger = EngineLedger()
    for number, prompt in enumerate(prompts):
        ledger.arrived.append(TwinRequest(f"r{number}", "", prompt, number * second_at_s))
        ledger.finished_s[f"r{number}"] = number * second_at_s + 1.0
    return bound_tokens(case, ledger)


def test_the_bound_computes_again_what_no_cache_could_hold_over_idle_moments() -> None:
    once, again = 41 + 33 + 1, 41 + 33 + 41
    assert bound(8, second_at_s=0.5) == once  # never idle: an order may ask it twice in a row
    assert bound(8, second_at_s=2.0) == again
    assert bound(9, second_at_s=2.0) == once


def test_a_small_burst_in_all_orders_and_none_below_its_bound() -> None:
    rows = run_case("near_cache_size", 8, True)
    assert rows[0].order == STOCK
    assert rows[0].load is None
    assert {OURS, SGLANG, *PASSES, "fewest tokens left"} <= {row.order for row in rows}
    assert min(row.tokens for row in rows) >= rows[0].bound_tokens > 0


def test_a_plugin_that_fails_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("scheduler_plugin.reuse.ReuseChoice.next", broken)
    with pytest.raises(RuntimeError, match="the plugin is off: FCFSRequestQueue served"):
        run_case("near_cache_size", 8, False)


def test_musts_that_exclude_each_other_are_counted_where_all_fits() -> None:
    rows = [
        *case_rows(0.5, 4.0, seed=48, fits=True, bound_tokens=1000),
        *case_rows(0.5, 4.0, seed=52),
        *case_rows(1.0, 6.0, seed=56),
        *case_rows(1.0, 4.0, seed=60),
    ]
    text = limits(rows)
    assert "In 25.0% of all cases it all fits and vLLM's mean is more than 3 % above lpm's" in text
    assert "in 0.0% its p99 is" in text
    assert "p99 more than 3 % above vLLM's in 25.0%" in text
    assert "In 25.0% of all cases the bound is vLLM's own figure" in text
    assert "| never | 50.0% | 0.0% | 0.0% | 1.000 |" in text
    assert "with vLLM's order where all fits, in 25.0%" in text


def test_a_study_that_was_cut_off_does_not_run_its_cases_again(tmp_path: Path) -> None:
    rows = [
        replace(ROW, family=family, seed=seed, load=load)
        for seed, load in ((0, None), (1, 0.5))
        for family in FAMILIES
    ]
    file = tmp_path / "cases.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, asdict(ROW))
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    assert measure(2, file, workers=1) == rows
