"""Limits as users write them, and what becomes of them."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_runs import run_of

from loadgen.compare import wording
from loadgen.compare.comparison import ComparedMetric, Comparison, compare
from loadgen.compare.gate import parse_gate, parse_limit
from loadgen.compare.interval import Interval
from loadgen.compare.metrics import METRICS, figure, parse_statistic
from loadgen.compare.run import ComparedRun
from loadgen.compare.series import Ratio
from loadgen.compare.sides import Sides
from loadgen.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"
STEADY = 100 * np.exp(0.05 * np.random.default_rng(0).standard_normal(400))


@pytest.mark.parametrize(
    ("text", "at_most", "bound", "kind"),
    [
        ("ttft_ms.p95<=+10%", True, 0.10, "relative"),
        (" output_tokens_per_s >= -5 % ", False, -0.05, "relative"),
        ("ttft_ms.p99.9<=+20", True, 20.0, "difference"),
        ("ttft_ms.mean<=200", True, 200.0, "value"),
        ("errors<=0.1%", True, 0.001, "value"),
        ("cached_share>=-2%", False, -0.02, "difference"),
        ("e2e_ms.p50<=+0%", True, 0.0, "relative"),
        ("errors<=100%", True, 1.0, "value"),
    ],
)
def test_limits(text: str, at_most: bool, bound: float, kind: str) -> None:
    limit = parse_limit(text)
    assert (limit.at_most, limit.bound, limit.kind) == (at_most, pytest.approx(bound), kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft_ms.p95", "no limit"),
        ("ttft_ms.p95<+10%", "no limit"),
        ("", "no limit"),
        ("errors<=0.1%,", "no limit"),
        ("ttft_ms.p95<=1e3", "no limit"),
        (f"ttft_ms.p95<={'9' * 310}", "a limit of 310 digits is no limit"),
        ("ttft_ms.p95<=10%", "say \\+N% or -N%"),
        ("errors<=0.1", "add a %"),
        ("speed.p95<=+1%", "unknown metric 'speed'"),
        ("ttft_ms<=+1%", "ttft_ms.mean or a percentile"),
        ("ttft_ms.p0<=+1%", "a percentile"),
        ("ttft_ms.p100<=+1%", "a percentile"),
        (f"ttft_ms.p99.{'9' * 20}<=+1%", "a percentile"),
        ("errors<=150%", "more than the whole"),
        ("cached_share>=-150%", "more than the whole"),
        ("requests_per_s>=-100%", "no figure falls by more than 100%"),
        ("ttft_ms.p95<=-150%", "no figure falls by more than 100%"),
        ("errors.p95<=1%", "one figure"),
        ("no.toml", "cannot be read"),
    ],
)
def test_what_is_no_gate_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse_gate(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    ['[gate]\n"ttft_ms.p95" = "<=+10%"\nerrors = "<=0.1%"', '[gate]\nttft_ms.p95 = "<=+10%"'],
)
def test_a_gate_in_a_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(content)
    assert parse_gate(str(file))[0] == parse_limit("ttft_ms.p95<=+10%")


DEEP = "gate = " + "[" * 100_000


OUTSIDE = '"ttft_ms.p95" = "<=+10%"\n[gate]\nerrors = "<=1%"'


@pytest.mark.parametrize(
    "content", ["gate = 1", "[gate]", "[gate]\nerrors = 0.1", "gate =", DEEP, OUTSIDE]
)
def test_files_that_are_no_gate(content: str, tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"gate.toml") as raised:
        parse_gate(str(file))
    assert "\n" not in str(raised.value)


def gate(base: ComparedRun, new: ComparedRun, text: str) -> Comparison:
    return compare(Sides((base,), (new,)), limits=parse_gate(text))


@pytest.mark.parametrize(
    ("factor", "limit", "code"),
    [
        (1.3, "ttft_ms.mean<=+10%", 1),
        (1.0, "ttft_ms.mean<=+10%", 0),
        (0.7, "ttft_ms.mean<=+10%", 0),
        (1.1001, "ttft_ms.mean<=+10%", 4),
        (1.3, "ttft_ms.mean<=120", 1),
        (1.0, "ttft_ms.mean<=120", 0),
        (1.3, "ttft_ms.mean<=+20", 1),
        (1.1, "ttft_ms.p50<=+20", 0),
        (0.7, "ttft_ms.p50>=-10%", 1),
        (1.3, "ttft_ms.mean<=+50%, ttft_ms.p50<=+10%", 1),
    ],
)
def test_exit_codes(factor: float, limit: str, code: int) -> None:
    shifted = factor * np.roll(STEADY, 200)
    assert gate(run_of(STEADY), run_of(shifted), limit).exit_code == code


def test_fewer_than_thirty_samples_decide_nothing() -> None:
    for samples, code in ((29, 4), (30, 1)):
        few = run_of(3 * STEADY[:samples])
        assert gate(run_of(STEADY), few, "ttft_ms.mean<=+10%").exit_code == code


def test_a_broken_limit_weighs_more_than_an_undecided_one() -> None:
    new = run_of(STEADY[:20], failed=60)
    assert gate(run_of(STEADY), new, "ttft_ms.mean<=+10%,errors<=0.1%").exit_code == 1


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (1, 4), (60, 1)])
def test_errors(failed: int, code: int) -> None:
    assert gate(run_of(), run_of(failed=failed), "errors<=0.1%").exit_code == code


def test_no_error_in_a_hundred_requests_is_no_proof_of_one_in_a_thousand() -> None:
    sides, limits = Sides((run_of(),), (run_of(),)), parse_gate("errors<=0.1%")
    seen, proven = (compare(sides, limits=limits, needs_proof=each) for each in (False, True))
    assert (seen.exit_code, proven.exit_code) == (0, 4)
    assert re.match(r"0 % \(0 % to \d.* %\); no proof", wording.finding(proven.judgements[0]))


@pytest.mark.parametrize(("done", "code"), [(600, 0), (28, 1), (0, 1)])
def test_a_rate_that_collapses_is_decided(done: int, code: int) -> None:
    def served(ok: int) -> ComparedRun:
        parts = np.zeros(600)
        parts[np.arange(ok) * 600 // max(ok, 1)] = 1.0
        rate = Ratio(parts, np.full(600, 0.1), 600)
        return replace(run_of(), series={"requests_per_s": rate})

    for limit in ("requests_per_s>=-20%", "requests_per_s>=5", "requests_per_s>=-2"):
        assert gate(served(600), served(done), limit).exit_code == code
    assert gate(served(600), served(0), "requests_per_s<=5").exit_code == 4


def test_totals_have_no_interval() -> None:
    total = ComparedRun("stats", totals={"response_ms.p95": (100.0, 500)})
    comparison = gate(total, total, "response_ms.p95<=+10%")
    assert comparison.exit_code == 4
    assert comparison.rows[0].verdict == "no interval"


def test_a_metric_that_a_file_does_not_have_is_wrong_use() -> None:
    with pytest.raises(UsageError, match=r"does not tell e2e_ms.p50"):
        gate(run_of(STEADY), run_of(STEADY), "e2e_ms.p50<=+10%")


@pytest.mark.parametrize(
    ("limits", "intervals"),
    [
        ("ttft_ms.mean<=+10%", 1),
        ("ttft_ms.mean<=+10%, ttft_ms.mean>=-10%", 1),
        ("errors<=+1%", 1),
        ("ttft_ms.mean<=200", 2),
        ("ttft_ms.mean<=+20", 2),
        ("errors<=1%", 2),
        ("ttft_ms.mean<=+10%, ttft_ms.p50<=+10%, ttft_ms.p95<=+10%", 3),
        ("ttft_ms.mean<=+10%, ttft_ms.mean<=+20, ttft_ms.mean<=200", 3),
    ],
)
def test_each_interval_that_is_made_makes_all_wider(limits: str, intervals: int) -> None:
    made = gate(run_of(STEADY), run_of(STEADY), limits)
    assert made.level == pytest.approx(1 - 0.01 / intervals)


def repeated(values: int, spread: float = 0.0, runs: int = 3) -> tuple[ComparedRun, ...]:
    """Repeats of so many TTFTs each, which differ by `spread` beyond that."""
    rng = np.random.default_rng(1)
    return tuple(
        run_of(100 * np.exp(spread * rng.standard_normal() + 0.05 * rng.standard_normal(values)))
        for _ in range(runs)
    )


def advice(base: tuple[ComparedRun, ...], new: tuple[ComparedRun, ...], text: str) -> str:
    (judged,) = compare(Sides(base, new), limits=parse_gate(text)).judgements
    return wording.finding(judged).rpartition("; ")[2]


def test_what_single_runs_do_not_see_longer_ones_or_five_repeats_would() -> None:
    rng = np.random.default_rng(0)
    sides = [(run_of(100 * np.exp(0.5 * rng.standard_normal(200))),) for _ in range(2)]
    said = advice(*sides, "ttft_ms.mean<=+10%")
    assert re.search(r"for 10 % make runs \d+ times as long, or \d+ repeats", said)
    near = advice((run_of(STEADY),), (run_of(np.roll(STEADY, 200)),), "ttft_ms.mean<=+1%")
    assert re.search(r"make runs [234] times as long, or 5 repeats$", near)


def test_where_repeats_tell_how_runs_differ_only_more_of_them_help() -> None:
    sides = repeated(100, 0.1), repeated(100, 0.2)
    said = advice(*sides, "ttft_ms.mean<=+10%")
    found = re.search(r"for 10 % make ([\d,]+) repeats$", said)
    assert found
    assert int(found[1].replace(",", "")) % 3 == 0
    assert "as long" not in said


@pytest.mark.parametrize(("failed", "most"), [(0, 400), (100, 400)])
def test_a_share_of_nothing_or_of_all_grows_sure_with_the_requests(failed: int, most: int) -> None:
    """Not with their root."""
    limit = "errors>=99.9%" if failed else "errors<=0.1%"
    said = advice((run_of(),), (run_of(failed=failed),), limit)
    found = re.search(r"make runs (\d+) times as long", said)
    assert found
    assert 50 < int(found[1]) < most


@pytest.mark.parametrize(
    ("name", "values", "is_enough"),
    [("p95", 19, False), ("p95", 20, True), ("p99", 99, False), ("p99", 100, True)],
)
def test_repeats_do_not_tell_a_percentile_that_each_has_too_few_values_for(
    name: str, values: int, is_enough: bool
) -> None:
    sides = Sides(repeated(values, 0.01), repeated(values, 0.01))
    limits = parse_gate(f"ttft_ms.{name}<=+50%")
    (row,), (judged,) = (made := compare(sides, limits=limits)).rows, made.judgements
    assert (row.verdict != "too little data") == is_enough
    assert (judged.outcome != "undecided") == is_enough
    if not is_enough:
        told = wording.finding(judged)
        assert f"each run needs {values + 1} usable samples" in told
        assert told.endswith("make runs 2 times as long")


def verdict(base: ComparedRun, new: ComparedRun, name: str = "ttft_ms.mean") -> str:
    return compare(Sides((base,), (new,)), [parse_statistic(name)]).rows[0].verdict


def test_as_many_errors_as_the_limit_are_not_beyond_it() -> None:
    """0.7 % of 1,000: as a fraction divided by 100 the limit would be a little less."""
    sides = Sides((run_of(of=1000),), (run_of(failed=7, of=1000),))
    (judged,) = compare(sides, limits=parse_gate("errors<=0.7%")).judgements
    assert judged.outcome == "passed"


def test_figures_of_unequal_repeats_are_those_that_the_change_is_of() -> None:
    """The second seed is four times as slow on both sides, and one has it twice."""

    def side(*seeds: int) -> tuple[ComparedRun, ...]:
        return tuple(run_of(STEADY * 4**seed, seed=seed) for seed in seeds)

    (row,) = compare(Sides(side(0, 0, 1), side(0, 1, 1)), [parse_statistic("ttft_ms.mean")]).rows
    assert row.change is not None
    assert row.change.estimate == pytest.approx(0, abs=1e-9)
    assert row.new == pytest.approx(row.base)


@pytest.mark.parametrize(
    ("change", "said"),
    [(-0.995, "-99.5 % (200 times as fast)"), (249.0, "+24,900 % (250 times as long)")],
)
def test_a_large_factor_is_told_in_digits(change: float, said: str) -> None:
    interval = Interval(change, change, change)
    row = ComparedMetric(parse_statistic("ttft_ms.mean"), 1.0, 1.0, (99, 99), interval, "better")
    assert wording.change(row) == said


def test_a_percentile_of_too_few_values_is_said_to_be_none() -> None:
    (few,) = compare(
        Sides((run_of(STEADY),), (run_of(STEADY[:19]),)), [parse_statistic("ttft_ms.p95")]
    ).rows
    assert wording.verdict(few) == "too few values for a p95"


def test_verdicts() -> None:
    base, other = run_of(STEADY), np.roll(STEADY, 200)
    assert verdict(base, run_of(1.3 * other)) == "worse"
    assert verdict(base, run_of(0.7 * other)) == "better"
    assert verdict(base, run_of(other)) == "no evidence"
    assert verdict(base, run_of(STEADY[:29])) == "too little data"
    assert verdict(base, run_of(STEADY[:40]), "ttft_ms.p99") == "too little data"
    assert verdict(base, run_of(STEADY, failed=50), "errors") == "worse"


def test_changes_beyond_all_measure_are_only_said_to_be_so() -> None:
    statistic = parse_statistic("ttft_ms.mean")
    shown = wording.between(statistic, Interval(0.5, -0.999, 7.1e17))
    assert shown == "-99.9 % to >+1,000,000 %"
    assert figure(statistic, 7.1e17) == "7.1e+17 ms"


def test_the_page_names_every_metric_and_its_limits_can_be_read() -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    table = text.partition("| metric | unit | better |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in row.split("|")] for row in table.splitlines()[2:]]
    assert {name for _, name, _, better, *_ in rows if better} == set(METRICS)
    gates = re.findall(r"`([\w.]+[<>]=[^`]+)`", (DOCS / "guides" / "ci-gate.md").read_text())
    assert len(gates) > 6
    assert all(parse_gate(gate) for gate in gates)
