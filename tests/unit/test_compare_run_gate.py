"""A gate on one run by itself: which limits it takes, and when a run keeps them."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from loadgen.compare.run_gate import RunGate, gate_lines, judge_run, parse_run_gate, to_junit
from loadgen.errors import UsageError
from loadgen.record import RequestRecord
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, exit_code
from loadgen.stats.tally import Tally


def tally(
    ok: int, failed: int = 0, ttft_ms: float | None = 100.0, slo_met: bool | None = None
) -> Tally:
    made = Tally()
    for number in range(ok + failed):
        known = dict.fromkeys(RequestRecord.__dataclass_fields__)
        ended = {"sent_s": 0.0, "end_s": 10.0, "resends": 0, "slo_met": slo_met, "error": ""}
        told = {"outcome": "ok", "ttft_ms": ttft_ms} if number < ok else {"outcome": "http_error"}
        made.add(RequestRecord(**{**known, **ended, **told}))
    return made


def judged(text: str, of: Tally, faults: tuple[str, ...] = ()) -> RunGate:
    limits = parse_run_gate(text, has_objective=True, is_batched=True)
    return judge_run(limits, of, 10.0, None, faults)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no limit"),
        ("ttft_ms.p95<=+10%", "needs a base: use `kvswarm compare"),
        ("errors<=+0.1%", "needs a base"),
        ("errors<=101%", "more than the whole"),
        ("goodput>=99%", "give --slo"),
        ("makespan_s.p50<=3", "of batches"),
        ("response_ms.mean<=3", "limit e2e_ms"),
        ("speed<=3", "--gate: unknown metric 'speed'"),
        ("ttft_ms.p95<500", "such as ttft_ms.p95<=500"),
    ],
)
def test_what_no_run_can_tell_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        parse_run_gate(text, has_objective=False, is_batched=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "of", "is_met"),
    [
        ("ttft_ms.p95<=200, requests_per_s>=1", tally(20), True),
        ("ttft_ms.mean<=99", tally(10), False),
        ("ttft_ms.mean>=99", tally(10), True),
        ("errors<=0.7%", tally(993, 7), True),
        ("errors<=0.7%", tally(992, 8), False),
        ("errors<=0%", tally(1), True),
        ("goodput>=99.9%", tally(999, slo_met=True), True),
        ("goodput>=1%", tally(999, slo_met=False), False),
    ],
)
def test_a_limit_is_held_against_the_figure(text: str, of: Tally, is_met: bool) -> None:
    assert judged(text, of).is_met is is_met


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("errors<=100%", tally(0)),
        ("ttft_ms.p95<=1000", tally(0, failed=3)),
        ("ttft_ms.p95<=1000", tally(19)),
        ("ttft_ms.p95>=1", tally(19)),
        ("goodput>=0%", tally(3)),
        ("refused_share<=100%", tally(3)),
        ("itl_p95_ms.p95<=1000", tally(3)),
        ("requests_per_s>=0", Tally()),
    ],
)
def test_an_unknown_figure_meets_no_limit_and_says_so(text: str, of: Tally) -> None:
    gate = judged(text, of)
    assert (gate.is_met, gate.findings[0].value) == (False, None)
    assert "not known" in gate_lines(gate.to_json())[1]
    assert 'errors="1"' in to_junit(gate)


def partly_told(known: int, unknown: int, **told: float) -> Tally:
    """So many replies that are ok and tell these figures, and so many that tell none."""
    made = tally(unknown, ttft_ms=None)
    for _ in range(known):
        fields = dict.fromkeys(RequestRecord.__dataclass_fields__)
        made.add(RequestRecord(**{**fields, "outcome": "ok", "end_s": 10.0, "error": "", **told}))
    return made


@pytest.mark.parametrize(
    ("text", "known", "is_met"),
    [
        ("ttft_ms.p90<=200", 19, True),
        ("ttft_ms.p95<=200", 19, False),
        ("ttft_ms.p50<=200", 3, True),
        ("ttft_ms.mean<=200", 19, False),
        ("ttft_ms.mean>=99", 19, True),
        ("tpot_ms.p50<=50", 3, True),
        ("tpot_ms.p95<=50", 19, False),
    ],
)
def test_replies_whose_figure_is_unknown_are_beyond_any_limit(
    text: str, known: int, is_met: bool
) -> None:
    told = {"ttft_ms": 100.0, "tpot_ms": 20.0, "output_tokens": 5}
    gate = judged(text, partly_told(known, 1, **told))
    assert gate.is_met is is_met
    if not is_met:
        lack = f"1 of {known + 1} replies that are ok have no {text.partition('.')[0]}"
        assert gate.findings[0].found == f"not known: {lack}"


@pytest.mark.parametrize(
    ("text", "of", "said", "is_proven"),
    [
        ("errors<=0.1%", tally(100), "0 % (0 of 100: up to 6.2 % is possible)", False),
        ("errors<=0.1%", tally(7_000), "0 % (0 of 7,000: up to 0.095 % is possible)", True),
        ("errors<=5%", tally(995, 5), "0.5 % (5 of 1,000: up to 1.5 % is possible)", True),
        ("errors<=0.4%", tally(995, 5), "0.5 % (5 of 1,000: up to 1.5 % is possible)", False),
        ("errors>=0.4%", tally(995, 5), "0.5 % (5 of 1,000: down to 0.17 % is possible)", False),
        (
            "goodput>=90%",
            tally(99, slo_met=True),
            "100 % (99 of 99: down to 94 % is possible)",
            True,
        ),
    ],
)
def test_a_share_says_what_its_requests_leave_possible_and_proof_is_of_that(
    text: str, of: Tally, said: str, is_proven: bool
) -> None:
    limits = parse_run_gate(text, has_objective=True, is_batched=False, needs_proof=True)
    seen, proven = judge_run(limits, of, 10.0, None), judge_run(limits, of, 10.0, None, (), True)
    assert gate_lines(seen.to_json())[1].endswith(said)
    assert proven.is_met is is_proven
    unproven = seen.is_met and not is_proven
    assert proven.findings[0].found == (said.replace("(", "(no proof, ") if unproven else said)


def test_each_share_that_is_limited_makes_all_intervals_wider() -> None:
    one, two = (
        judged(text, tally(100, slo_met=True)) for text in ("errors<=9%", "errors<=9%, goodput>=9%")
    )
    assert one.findings[0].possible is not None
    assert two.findings[0].possible is not None
    assert one.findings[0].possible < two.findings[0].possible


@pytest.mark.parametrize("text", ["ttft_ms.p95<=500", "errors<=1%, requests_per_s>=1"])
def test_what_one_run_cannot_prove_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="has no interval in one run: prove shares alone"):
        parse_run_gate(text, has_objective=False, is_batched=False, needs_proof=True)


def test_a_column_that_no_sketch_counts_is_read_from_the_requests() -> None:
    limits = parse_run_gate("itl_p95_ms.p50<=2", has_objective=False, is_batched=False)
    columns = {"itl_p95_ms": np.asarray([1.0, np.nan, 3.0])}
    found = judge_run(limits, tally(3), 10.0, columns.__getitem__).findings[0]
    assert (found.value, found.samples, found.is_met) == (2.0, 2, True)


def test_a_faulty_run_passes_no_gate_and_a_saturated_one_keeps_its_exit_code() -> None:
    saturated = judged("errors<=1%", tally(9), ("the client was saturated",))
    assert not saturated.is_met
    assert not saturated.fails_run
    interrupted = judged("errors<=1%", tally(9), ("it was interrupted before its end",))
    assert interrupted.fails_run
    assert "but it was interrupted" in interrupted.verdict
    made = {"requests": 9, "failed": 0, "outcomes": {"ok": 9}, "client_saturated": True}
    settings = {"host_died": False, "max_failures_percent": 0.0}
    assert exit_code(made, **settings, gate_is_met=not saturated.fails_run) == SATURATED
    assert exit_code(made, **settings, gate_is_met=False) == FAILED
    assert exit_code(made | {"client_saturated": False}, **settings) == DONE


def test_junit_has_a_case_for_each_limit() -> None:
    text = to_junit(judged("errors<=1%, ttft_ms.p95<=1, refused_share<=1%", tally(20)))
    suite = ElementTree.fromstring(text)
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [case[0].tag for case in suite] == ["system-out", "failure", "error"]
    assert suite[1].get("name") == "ttft_ms.p95<=1"


def test_a_value_just_beyond_its_limit_does_not_look_like_it() -> None:
    found = judged("ttft_ms.mean<=100", tally(3, ttft_ms=100.001)).findings[0]
    assert not found.is_met
    assert "less than is shown" in found.found


@pytest.mark.parametrize(
    ("name", "requests", "said", "is_known"),
    [
        ("p95", 12, "not known: n=12: too few for a p95, which needs 20", False),
        ("p95", 20, "(n=20)", True),
        ("p99", 99, "not known: n=99: too few for a p99, which needs 100", False),
        ("p99.9", 1000, "(n=1,000)", True),
        ("p50", 1, "(n=1)", True),
        ("mean", 1, "(n=1)", True),
    ],
)
def test_a_percentile_of_too_few_values_keeps_no_limit_and_says_how_many_it_needs(
    name: str, requests: int, said: str, is_known: bool
) -> None:
    gate = judged(f"ttft_ms.{name}<=500", tally(requests))
    assert gate.is_met is is_known
    assert gate.fails_run is not is_known
    assert gate_lines(gate.to_json())[1].endswith(said)
    assert said in to_junit(gate)


WITHOUT_SCIPY = """
import sys
sys.modules["scipy"] = None
from loadgen.compare.run_gate import gate_lines, judge_run, parse_run_gate
from loadgen.stats.tally import Tally
tally = Tally.from_wire({**Tally().to_wire(), "outcomes": {"ok": 9}})
limits = parse_run_gate("errors<=0%, requests_per_s>=1", False, False)
print(*gate_lines(judge_run(limits, tally, 1.0, None).to_json()), sep="\\n")
"""


def test_a_gate_of_a_run_needs_no_more_than_the_base_installation() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_SCIPY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, ["gate passed: 2 of 2 met"]), (
        done.stderr
    )
