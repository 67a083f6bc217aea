"""The pure parts of `make bench-scheduler`: bound, musts, CSV files, tables."""

from dataclasses import replace
from pathlib import Path

import pytest
from scheduler_batches import Batch, Question, bound_tokens
from scheduler_cases import (
    ALL_ARMS,
    CACHE_SIZES,
    HARD_ORDER,
    Case,
    one_engine_cases,
    server_cases,
)
from scheduler_engine_tables import batches_table, one_engine_table
from scheduler_markdown import insert, table
from scheduler_musts import Must, Rows, musts, ratios_to_stock
from scheduler_outputs import compare, grouped
from scheduler_poisson import arrivals
from scheduler_report import musts_table
from scheduler_rows import (
    AdmissionRow,
    EngineRow,
    OneEngineRow,
    VirtualPoissonRow,
    read_rows,
    write_rows,
)
from scheduler_servers import EngineSetup

ROW = EngineRow(
    case="20 blocks",
    setup="20-blocks",
    arm="stock",
    repeat=1,
    requests=36,
    bound_tokens=12_600,
    computed_tokens=44_856,
    external_tokens=0,
    preemptions=0,
    total_s=8.0,
    ttft_p50_s=4.0,
    ttft_p95_s=7.5,
    others_cpu=0.01,
)


ONE = OneEngineRow(
    case="20 blocks",
    blocks=20,
    arm="stock",
    repeat=1,
    requests=36,
    bound_tokens=12_600,
    computed_tokens=44_856,
    steps=30,
    total_s=8.0,
    others_cpu=0.01,
)


def on_one(arm: str, *totals_s: float, case: str = "20 blocks") -> list[OneEngineRow]:
    return [
        replace(ONE, case=case, arm=arm, repeat=number, total_s=total_s)
        for number, total_s in enumerate(totals_s, 1)
    ]


def served(arm: str, *totals_s: float, case: str = "20 blocks") -> list[EngineRow]:
    return [
        replace(ROW, case=case, arm=arm, repeat=number, total_s=total_s)
        for number, total_s in enumerate(totals_s, 1)
    ]


def found(rows: Rows, measure: str) -> Must:
    (must,) = [must for must in musts(rows) if measure in must.measure]
    return must


def test_the_bound_of_the_batch_that_the_figures_are_given_for() -> None:
    # 6 x 1630 tokens once, and 30 x (1630 - 12 blocks).
    assert Batch().bound_tokens == 6 * 1630 + 30 * (1630 - 12 * 128) == 12_600


@pytest.mark.parametrize(
    ("counts", "context", "question", "expected"),
    [
        ([1, 1], 256, 10, 2 * 266),  # nothing is shared
        ([2, 0], 256, 10, 266 + 10),  # an unasked context costs nothing
        ([3], 255, 10, 265 + 2 * (265 - 128)),  # half a block is not shared
        ([2], 256, 0, 256 + 128),  # the last token is computed, and with it its block
    ],
)
def test_the_bound_counts_whole_blocks(
    counts: list[int], context: int, question: int, expected: int
) -> None:
    assert bound_tokens(counts, context, question) == expected


def test_a_batch_is_the_same_for_the_same_seed_and_only_reordered_by_order() -> None:
    batch = Batch()
    assert batch.questions() == batch.questions()
    assert batch.questions(1) != batch.questions()
    assert set(batch.questions(1)) == set(batch.questions())
    assert {len(question.prompt) for question in batch.questions()} == {1630}
    assert len(set(batch.questions())) == batch.requests == 36
    assert replace(batch, seed=1).questions() != batch.questions()


def test_a_batch_may_have_a_system_prompt_a_hot_context_or_sessions() -> None:
    """The bound of the first counts its four blocks once, not once for each context."""
    system = Batch(system_tokens=512, context_tokens=1088)
    assert system.bound_tokens == 1630 + 5 * (1630 - 512) + 30 * (1630 - 12 * 128)
    assert len({question.prompt[:512] for question in system.questions()}) == 1
    assert len({question.prompt[:640] for question in system.questions()}) == 6
    hot = Batch(asked=(32, 1, 1, 1, 1))
    assert (hot.requests, hot.bound_tokens) == (36, 5 * 1630 + 31 * (1630 - 12 * 128))
    sessions = Batch(by_session=True)
    assert {question.prompt for question in sessions.questions()} == {
        question.prompt for question in Batch().questions()
    }
    begun = {(question.context, question.prompt[:1600]) for question in sessions.questions()}
    assert len(begun) == 36, "each session asks each context"


def test_every_arm_is_first_in_some_repeat() -> None:
    turns = Case("any", EngineSetup(20), arms=ALL_ARMS, repeats=4).turns()
    assert [arm.name for _, arm in turns[:: len(ALL_ARMS)]] == [arm.name for arm in ALL_ARMS]
    assert sorted(number for number, _ in turns) == sorted([1, 2, 3, 4] * 4)


def test_cases_have_titles_of_their_own_and_fit_in_their_cache() -> None:
    one, servers = one_engine_cases(), server_cases(quick=False)
    sized = [(case, case.blocks) for case in one] + [(case, case.setup.blocks) for case in servers]
    for cases in (one, servers):
        assert len({case.title for case in cases}) == len(cases)
    for case, blocks in sized:
        batch = case.batch
        opening = batch.system_tokens + batch.context_tokens
        assert opening + batch.question_tokens + batch.output_tokens <= blocks * 128
    assert [case.blocks for case in one_engine_cases(quick=True)] == [20, 158]


def test_a_ratio_compares_batches_of_one_repeat() -> None:
    rows = served("stock", 8.0, 10.0, 9.0) + served("lpm", 2.0, 5.0)
    assert ratios_to_stock(rows)["lpm"] == [0.25, 0.5]
    assert ratios_to_stock(served("lpm", 2.0)) == {"lpm": []}


def test_total_time_is_judged_by_the_median_of_the_worst_arm() -> None:
    rows = on_one("stock", 10.0, 10.0, 10.0) + on_one("lpm", 3.0, 9.0, 3.0)
    must = found(Rows(engine=tuple(rows)), "total time / stock, 20 blocks")
    assert (must.measured, must.worst, must.met) == (0.3, "lpm", True)
    rows += on_one("prefix-group", 4.1, 4.1, 1.0)
    must = found(Rows(engine=tuple(rows)), "total time / stock, 20 blocks")
    assert (must.measured, must.worst, must.met) == (0.41, "prefix-group", False)


def test_rows_of_other_cases_decide_nothing() -> None:
    rows = on_one("stock", 10.0, case="20 blocks, any order") + on_one(
        "lpm", 9.0, case="20 blocks, any order"
    )
    assert found(Rows(engine=tuple(rows)), "total time / stock, 20 blocks").measured is None


def test_what_was_not_measured_is_not_met() -> None:
    assert not any(must.met for must in musts(Rows()))
    assert all(must.measured is None for must in musts(Rows()))


def test_latency_is_that_of_the_default_policy_at_that_load() -> None:
    row = VirtualPoissonRow("reuse", 1.5, 2.0, 4.0, 0.2, 0.9, 1000.0, 10, -5)
    rows = Rows(poisson=(row, replace(row, policy="prefix-group", mean_ratio=0.9, over_bound=1)))
    assert found(rows, "mean latency / stock, Poisson at 1.5x").measured == 0.2
    assert found(rows, "mean latency / stock, Poisson at 0.95x").measured is None
    overtakes = found(rows, "overtakes")
    assert (overtakes.measured, overtakes.worst, overtakes.met) == (1, "prefix-group", False)


def test_cost_is_the_worst_over_all_numbers_of_contexts() -> None:
    row = AdmissionRow("lpm", 1, 10_000, 60.0, 1.1, 5.0, 1.8, 30.0, 1.4)
    stock = replace(row, policy="stock", admission_ratio=9.0)
    rows = Rows(admission=(row, replace(row, contexts=10_000, admission_ratio=1.6), stock))
    assert found(rows, "cost of a step / stock, 10,000 who cannot run").met
    must = found(rows, "cost of an admission")
    assert (must.measured, must.worst) == (1.6, "lpm, 10000 contexts")


def test_rows_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    rows = served("stock", 8.125, 9.0) + served("lpm, no labels", 1 / 3)
    write_rows(rows, tmp_path)
    assert read_rows(EngineRow, tmp_path) == rows
    assert read_rows(AdmissionRow, tmp_path) == []


def test_a_case_has_a_line_for_each_arm_with_its_range() -> None:
    lines = batches_table(served("lpm", 2.0, 4.0) + served("stock", 8.0, 8.0)).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["stock", "lpm"]
    assert "44,856 (3.56)" in lines[2]
    assert "3.00 (2.00 to 4.00) | 0.38 (0.25 to 0.50)" in lines[3]


def test_the_table_of_one_engine_has_stock_first_and_the_steps() -> None:
    lines = one_engine_table(on_one("lpm", 2.0, 4.0) + on_one("stock", 8.0, 8.0)).splitlines()
    assert "44,856 (3.56) | 30 | 8.00 (8.00 to 8.00)" in lines[2]
    assert "3.00 (2.00 to 4.00) | 0.38 (0.25 to 0.50)" in lines[3]


def test_a_missed_must_is_seen_in_the_table() -> None:
    text = musts_table([Must("a", 1.0, 1.0, "lpm"), Must("b", 1.0, 1.001, "lpm"), Must("c", 1.0)])
    assert text.startswith("| must | at most | found |"), "not all of it is measured"
    assert [line.split(" | ")[-1] for line in text.splitlines()[2:]] == [
        "met |",
        "**missed** |",
        "not measured |",
    ]


def test_a_table_without_lines_is_nothing() -> None:
    assert table(("a", "b"), []) == ""


def test_a_report_replaces_the_one_before_and_nothing_else() -> None:
    page = "top\n<!-- bench-scheduler:begin -->\nold\n<!-- bench-scheduler:end -->\nbottom\n"
    once = insert(page, "new")
    assert "old" not in once
    assert once.startswith("top\n")
    assert once.endswith("\nbottom\n")
    assert insert(once, "new") == once
    with pytest.raises(ValueError, match="bench-scheduler:begin"):
        insert("a page without markers", "new")


def test_replies_are_compared_by_prompt() -> None:
    reference = {(1,): (5, 6), (2,): (7, 8), (3,): (9, 9)}
    row = compare("again", reference, {(3,): (1, 9), (2,): (7, 0), (1,): (5, 6)})
    assert (row.replies, row.same, row.same_first) == (3, 1, 2)


def test_grouping_keeps_the_order_inside_a_context_and_of_the_contexts() -> None:
    names = ["b", "a", "b", "c", "a"]
    sent = [Question(name, (place,)) for place, name in enumerate(names)]
    assert [(each.context, *each.prompt) for each in grouped(sent)] == [
        ("b", 0),
        ("b", 2),
        ("a", 1),
        ("a", 4),
        ("c", 3),
    ]


def test_poisson_arrivals_ask_different_questions_at_the_wanted_rate() -> None:
    coming = arrivals(rate=10.0, count=400)
    assert len({arrival.question for arrival in coming}) == 400
    assert coming == arrivals(rate=10.0, count=400)
    assert 30 < coming[-1].at_s < 50
    assert sorted(coming, key=lambda arrival: arrival.at_s) == coming


def test_the_sizes_of_the_musts_are_all_measured_in_one_order() -> None:
    cases = [case for case in one_engine_cases() if case.fixed_order is not None]
    assert [case.blocks for case in cases] == list(CACHE_SIZES)
    assert {case.order(repeat) for case in cases for repeat in (1, 2)} == {HARD_ORDER}
    rows = [replace(ONE, case=case.title, arm=arm) for case in cases for arm in ("stock", "lpm")]
    judged = [must for must in musts(Rows(engine=tuple(rows))) if "total time" in must.measure]
    assert [must.measured for must in judged] == [1.0] * len(CACHE_SIZES)


def test_any_order_is_another_one_in_each_repeat_and_the_same_for_all_arms() -> None:
    cases = [case for case in one_engine_cases() if case.fixed_order is None]
    assert cases
    for case in cases:
        assert len({case.order(repeat) for repeat, _ in case.turns()}) == case.repeats
