from dataclasses import replace
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.record import RequestRecord
from loadgen.stats.slo import CutOffRule, Slo
from loadgen.stats.tally import Tally

RECORD = RequestRecord(
    request_id="0",
    worker="0",
    user="u",
    context_id="c",
    question_id="q",
    repeat=False,
    scheduled_s=0.0,
    sent_s=0.0,
    first_token_s=0.5,
    end_s=1.0,
    ttft_ms=500.0,
    itl_mean_ms=10.0,
    itl_p50_ms=10.0,
    itl_p95_ms=10.0,
    itl_p99_ms=10.0,
    itl_max_ms=40.0,
    tpot_ms=10.0,
    e2e_ms=1000.0,
    prompt_tokens=9,
    cached_tokens=0,
    output_tokens=50,
    outcome="ok",
    status=200,
    error="",
)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ("ttft_ms<=500", True),
        ("ttft_ms<=499.9", False),
        (" ttft_ms <= 1e3 , itl_max_ms<=39", False),
        ("ttft_ms<=600,tpot_ms<=10,e2e_ms<=1000", True),
        ("retrieval_ms<=1", True),
    ],
)
def test_a_request_is_within_every_limit_or_not(slo: str, met: bool) -> None:
    assert Slo.parse(slo).is_met(RECORD) is met


def test_a_request_without_a_complete_reply_is_never_good() -> None:
    slo = Slo.parse("e2e_ms<=10000")
    assert not slo.is_met(replace(RECORD, outcome="truncated"))
    assert not slo.is_met(replace(RECORD, ttft_ms=None))
    assert slo.is_met(replace(RECORD, tpot_ms=None))


@pytest.mark.parametrize(
    ("figure", "output_tokens", "met"),
    [
        ("tpot_ms", None, False),
        ("tpot_ms", 50, False),
        ("tpot_ms", 1, True),
        ("tpot_ms", 0, True),
        ("itl_p99_ms", None, False),
        ("itl_p99_ms", 1, True),
        ("e2e_ms", 50, False),
        ("retrieval_ms", None, True),
    ],
)
def test_an_unknown_figure_keeps_no_objective(
    figure: str, output_tokens: int | None, met: bool
) -> None:
    of_one = {"itl_mean_ms": None, figure: None}
    record = replace(RECORD, output_tokens=output_tokens, **of_one)
    assert Slo.parse(f"{figure}<=1e6").is_met(record) is met
    if figure != "retrieval_ms":
        several = replace(RECORD, output_tokens=output_tokens, **{figure: None})
        assert not Slo.parse(f"{figure}<=1e6").is_met(several)


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        ("", "no list of limits"),
        ("ttft_ms<500", "no list of limits"),
        ("ttft_ms>=500", "no list of limits"),
        ("ttft_ms<=500,", "no list of limits"),
        ("ttft<=500", "choose among ttft_ms"),
        ("ttft_ms<=0", "above 0"),
        ("ttft_ms<=1.2.3", "'1.2.3'"),
        ("ttft_ms<=1e999", "above 0"),
        ("ttft_ms<=1,ttft_ms<=2", "twice"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, telling: str) -> None:
    with pytest.raises(UsageError, match="--slo") as error:
        Slo.parse(text)
    assert telling in str(error.value)


def test_an_objective_says_itself_as_it_was_written() -> None:
    assert str(Slo.parse("ttft_ms<=500, tpot_ms<=12.5")) == "ttft_ms<=500,tpot_ms<=12.5"


SILENT = {"ttft_ms": None, "first_token_s": None, "itl_max_ms": None, "output_tokens": None}


@pytest.mark.parametrize(
    ("changes", "gaps_ms", "drain_s", "slo", "late", "met"),
    [
        ({**SILENT, "end_s": 2.5, "e2e_ms": 2500.0}, [], 2.0, "", True, None),
        ({**SILENT, "end_s": 1.5, "e2e_ms": 1500.0}, [], 2.0, "", None, None),
        (SILENT, [], 2.0, "ttft_ms<=500", True, False),
        ({**SILENT, "e2e_ms": 400.0, "end_s": 0.4}, [], 2.0, "ttft_ms<=500", None, None),
        ({"end_s": 9.0, "e2e_ms": 9000.0}, [100.0], 2.0, "", True, None),
        ({"end_s": 9.0, "e2e_ms": 9000.0}, [8000.0], 2.0, "", None, None),
        ({}, [], 2.0, "ttft_ms<=400", None, False),
        ({"end_s": 9.0, "e2e_ms": 9000.0}, [8000.0], 2.0, "e2e_ms<=8000", True, False),
        ({}, [100.0], 2.0, "itl_max_ms<=300", True, False),
        ({**SILENT, "end_s": 29.0, "e2e_ms": 29e3}, [], 0.0, "", None, None),
        ({**SILENT, "end_s": 31.0, "e2e_ms": 31e3}, [], 0.0, "", True, None),
    ],
)
def test_what_was_cut_off_is_late_when_it_had_waited_too_long(
    changes: dict[str, Any],
    gaps_ms: list[float],
    drain_s: float,
    slo: str,
    late: bool | None,
    met: bool | None,
) -> None:
    record = replace(RECORD, outcome="cancelled", error="cut off", **changes)
    CutOffRule.of(drain_s, 60.0, Slo.parse(slo) if slo else None).judge(record, gaps_ms)
    assert (record.late, record.slo_met) == (late, met)
    assert record.outcome == ("timeout" if late else "cancelled")
    assert ("it had waited longer than" in record.error) is bool(late)


@pytest.mark.parametrize("status", [408, 504])
@pytest.mark.parametrize(
    ("waited_s", "slo", "late"),
    [
        (0.003, "", None),
        (1.0, "", None),
        (1.1, "", True),
        (29.0, "", True),
        (60.0, "", True),
        (1.0, "ttft_ms<=500", True),
    ],
)
def test_a_time_limit_of_the_host_s_side_is_late_only_where_it_came_late(
    status: int, waited_s: float, slo: str, late: bool | None
) -> None:
    times = {"end_s": waited_s, "e2e_ms": 1000 * waited_s}
    record = replace(RECORD, **SILENT, **times, outcome="timeout", status=status)
    CutOffRule.of(30.0, 0.0, Slo.parse(slo) if slo else None).judge_ended(record, [])
    tally = Tally()
    tally.add(record, [])
    assert (record.late, tally.sketches["ttft_ms"].count) == (late, 1 if late else 0)


@pytest.mark.parametrize("at_the_end", [True, False])
def test_the_gap_that_was_open_when_a_late_request_was_cut_off_is_one_of_its_gaps(
    at_the_end: bool,
) -> None:
    outcome: Any = "cancelled" if at_the_end else "timeout"
    times = {"scheduled_s": 0.0, "first_token_s": 1.0, "end_s": 11.02, "output_tokens": 3}
    record, gaps_ms = replace(RECORD, outcome=outcome, **times), [10.0, 10.0]
    rule = CutOffRule.of(2.0, 60.0, None)
    (rule.judge if at_the_end else rule.judge_ended)(record, gaps_ms)
    assert gaps_ms == pytest.approx([10.0, 10.0, 10_000.0])
    assert record.itl_p50_ms == pytest.approx(10.0)
    assert record.itl_max_ms == record.latency_ms("itl_max_ms") == pytest.approx(10_000.0)
    assert record.itl_mean_ms == record.tpot_ms == pytest.approx(10_020 / 3)
    tally = Tally()
    tally.add(record, gaps_ms)
    assert tally.sketches["itl_ms"].count == 3
    assert tally.sketches["tpot_ms"].max == pytest.approx(10_020 / 3)


def test_a_late_request_without_a_token_has_no_gap_and_one_without_counts_no_tpot() -> None:
    rule = CutOffRule.of(2.0, 60.0, None)
    silent, gaps_ms = replace(RECORD, **SILENT, outcome="timeout"), []
    rule.judge_ended(silent, gaps_ms)
    assert (gaps_ms, silent.latency_ms("ttft_ms")) == ([], silent.e2e_ms)
    uncounted = replace(RECORD, outcome="timeout", output_tokens=None, tpot_ms=None)
    rule.judge_ended(uncounted, gaps_ms)
    assert (len(gaps_ms), uncounted.tpot_ms) == (1, None)
