import json
import math
from dataclasses import replace
from typing import Any

import pytest

from loadgen.record import OUTCOMES, BatchRecord, RequestRecord
from loadgen.stats.metrics import summarized
from loadgen.stats.summary import summarize
from loadgen.stats.tally import Tally
from loadgen.swarm.showing.summary_words import summary_lines

METRICS = [each.name for each in summarized()]
LABEL_SHARES = ("label_accuracy", "refused_share", "retrieval_share")

OK = RequestRecord(
    request_id="r1",
    worker="w1",
    user="u1",
    context_id="c1",
    question_id="q1",
    repeat=False,
    scheduled_s=1.0,
    sent_s=1.5,
    first_token_s=1.7,
    end_s=2.0,
    ttft_ms=700.0,
    itl_mean_ms=10.0,
    itl_p50_ms=10.0,
    itl_p95_ms=20.0,
    itl_p99_ms=20.0,
    itl_max_ms=20.0,
    tpot_ms=15.0,
    e2e_ms=1000.0,
    prompt_tokens=100,
    cached_tokens=64,
    output_tokens=3,
    outcome="ok",
    status=200,
    error="",
    retrieval_ms=70.0,
    rag_context_id="c1",
    label_correct=True,
)


WHOLE = BatchRecord(
    batch_id="0",
    worker="0",
    user="u1",
    requests=2,
    ok=2,
    contexts=1,
    scheduled_s=1.0,
    sent_s=1.0,
    first_token_s=1.5,
    first_reply_s=2.0,
    last_reply_s=3.0,
    makespan_s=2.0,
    call_prompt_tokens=None,
    call_output_tokens=None,
    outcome="ok",
)


def ended(outcome: Any, **changes: Any) -> RequestRecord:
    return replace(OK, outcome=outcome, **changes)


def figures(tally: Tally) -> dict[str, Any]:
    return {
        name: (s.count, s.sum, s.min, s.max, s.quantile(0.5)) for name, s in tally.sketches.items()
    }


def test_an_ok_request_enters_every_metric() -> None:
    tally = Tally()
    tally.add(OK, [10.0, 20.0])
    counts = {name: sketch.count for name, sketch in tally.sketches.items()}
    assert counts == {
        **dict.fromkeys(METRICS, 1),
        "itl_ms": 2,
        "makespan_s": 0,
    }
    assert tally.sketches["ttft_ms"].max == 700.0
    assert tally.sketches["itl_ms"].sum == 30.0
    assert (tally.prompt_tokens, tally.cached_tokens, tally.output_tokens) == (100, 64, 3)
    assert (tally.first_sent_s, tally.last_end_s) == (1.5, 2.0)


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "ok"])
def test_other_outcomes_are_counted_and_enter_no_metric(outcome: str) -> None:
    tally = Tally()
    tally.add(ended(outcome), [10.0])
    assert {sketch.count for sketch in tally.sketches.values()} == {0}
    assert tally.outcomes == {"ok": 0, outcome: 1}
    assert tally.requests == 1


def test_cancelled_is_neither_success_nor_failure() -> None:
    tally = Tally()
    for outcome in OUTCOMES:
        tally.add(ended(outcome))
    assert (tally.requests, tally.ok, tally.finished, tally.failed) == (8, 1, 7, 6)
    assert tally.outcomes == dict.fromkeys(OUTCOMES, 1)


def test_ok_is_among_the_outcomes_before_anything_happened() -> None:
    assert Tally().outcomes == {"ok": 0}
    assert (Tally().requests, Tally().failed, Tally().first_sent_s) == (0, 0, None)


def test_what_a_host_does_not_send_stays_unknown() -> None:
    tally = Tally()
    tally.add(ended("ok", cached_tokens=None, tpot_ms=None))
    assert tally.sketches["cached_tokens"].count == 0
    assert tally.sketches["tpot_ms"].count == 0
    assert tally.figure("cached_share") is None


def test_the_cached_share_counts_replies_that_left_a_zero_out() -> None:
    tally = Tally()
    tally.add(OK)
    tally.add(ended("ok", cached_tokens=None))
    assert tally.figure("cached_share") == 0.32
    uncached = Tally()
    uncached.add(ended("ok", cached_tokens=0))
    assert uncached.figure("cached_share") == 0.0


def test_cached_tokens_of_a_prompt_that_was_not_counted_are_left_out() -> None:
    tally = Tally()
    tally.add(ended("ok", prompt_tokens=None))
    assert tally.figure("cached_share") is None
    tally.add(OK)
    assert tally.figure("cached_share") == 0.64


def test_a_request_that_was_never_sent_moves_only_the_end() -> None:
    tally = Tally()
    tally.add(ended("connect_error", sent_s=None, end_s=9.0))
    tally.add(OK)
    assert (tally.first_sent_s, tally.last_end_s) == (1.5, 9.0)


def test_deltas_of_two_workers_add_up_to_the_whole() -> None:
    whole, master, workers = Tally(), Tally(), (Tally(), Tally())
    for number in range(30):
        outcome = "timeout" if number % 7 == 0 else "ok"
        record = ended(outcome, ttft_ms=number + 0.5, sent_s=float(number), end_s=number + 3.0)
        whole.add(record, [float(number), 1.0])
        workers[number % 2].add(record, [float(number), 1.0])
        if number % 5 == 0:
            for worker in workers:
                master.merge(Tally.from_wire(json.loads(json.dumps(worker.take().to_wire()))))
    for worker in workers:
        master.merge(worker.take())
        assert worker.requests == 0
    assert figures(master) == figures(whole)
    assert master.outcomes == whole.outcomes
    assert (master.first_sent_s, master.last_end_s) == (0.0, 32.0)


def test_take_hands_over_and_begins_anew() -> None:
    tally = Tally()
    tally.add(OK, [5.0])
    taken = tally.take()
    tally.add(ended("ok", sent_s=7.0, end_s=8.0))
    assert (taken.requests, taken.sketches["itl_ms"].count, taken.first_sent_s) == (1, 1, 1.5)
    assert (tally.requests, tally.sketches["itl_ms"].count, tally.first_sent_s) == (1, 0, 7.0)


def test_clear_forgets_everything() -> None:
    tally = Tally()
    tally.add(OK, [5.0])
    tally.clear()
    assert tally.to_wire() == Tally().to_wire()


def test_an_empty_tally_is_small_valid_json() -> None:
    assert len(json.dumps(Tally().to_wire(), allow_nan=False)) < 140


def test_a_latency_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        Tally().add(ended("ok", ttft_ms=math.nan))


def test_labels_of_all_requests_count_and_times_of_the_ok_ones_alone() -> None:
    master, workers = Tally(), (Tally(), Tally())
    assert [master.figure(name) for name in LABEL_SHARES] == [None] * 3
    workers[0].add(OK)
    workers[0].add(ended("timeout", ttft_ms=1.0, retrieval_ms=9000.0))
    workers[1].add(ended("ok", rag_context_id="", label_correct=False, retrieval_ms=210.0))
    workers[1].add(ended("connect_error", retrieval_ms=None, label_correct=None))
    workers[1].add(ended("ok", rag_context_id="other", label_correct=False, retrieval_ms=140.0))
    for worker in workers:
        master.merge(Tally.from_wire(json.loads(json.dumps(worker.take().to_wire()))))
        assert worker.figure("label_accuracy") is None
    assert master.figure("label_accuracy") == 2 / 4
    assert master.figure("refused_share") == 1 / 4
    assert master.figure("retrieval_share") == pytest.approx((70 + 210 + 140) / (3 * 700))
    assert master.sketches["retrieval_ms"].count == 3


def test_a_label_without_a_retrieval_is_right_or_wrong() -> None:
    tally = Tally()
    tally.add(ended("ok", rag_context_id="", retrieval_ms=None, label_correct=False))
    assert [tally.figure(name) for name in LABEL_SHARES] == [0.0, None, None]


def test_only_whole_batches_have_a_makespan() -> None:
    tally = Tally()
    tally.add_batch(WHOLE)
    tally.add_batch(replace(WHOLE, outcome="partial", ok=1, makespan_s=None))
    assert tally.batch_outcomes == {"ok": 1, "partial": 1}
    assert tally.sketches["makespan_s"].count == 1
    assert tally.requests == 0, "members are counted on their own"


def test_tokens_of_a_list_call_are_in_the_totals_alone() -> None:
    tally = Tally()
    tally.add(OK)
    tally.add(ended("ok", prompt_tokens=None, cached_tokens=None, output_tokens=None))
    tally.add_batch(replace(WHOLE, call_prompt_tokens=300, call_output_tokens=12))
    lost = replace(WHOLE, outcome="partial", makespan_s=None, call_output_tokens=12)
    tally.add_batch(lost)
    assert (tally.prompt_tokens, tally.output_tokens) == (400, 15)
    assert tally.sketches["output_tokens"].count == 1


def test_batches_of_two_workers_add_up() -> None:
    master = Tally()
    for makespan_s in (2.0, 4.0):
        worker = Tally()
        worker.add_batch(replace(WHOLE, makespan_s=makespan_s, call_output_tokens=5))
        master.merge(Tally.from_wire(json.loads(json.dumps(worker.take().to_wire()))))
        assert worker.to_wire() == Tally().to_wire()
    assert master.batch_outcomes == {"ok": 2}
    assert master.output_tokens == 10
    sketch = master.sketches["makespan_s"]
    assert (sketch.count, sketch.min, sketch.max) == (2, 2.0, 4.0)
    master.clear()
    assert master.to_wire() == Tally().to_wire()


def test_requests_that_were_sent_or_tried_again_are_counted() -> None:
    tally = Tally()
    for resends, retries in ((None, None), (0, 3), (1, 0), (1, 2)):
        tally.add(replace(OK, resends=resends, retries=retries))
    assert (tally.resends, tally.retries) == (2, 5)
    told = Tally.from_wire(tally.to_wire())
    assert (told.resends, told.retries) == (2, 5)


def test_rejected_requests_are_a_share_of_the_finished_ones() -> None:
    tally = Tally()
    for outcome in ("ok", "rejected", "http_error", "rejected", "cancelled"):
        tally.add(replace(OK, outcome=outcome))
    assert tally.figure("rejected_share") == 0.5
    assert tally.outcomes == {"ok": 1, "http_error": 1, "rejected": 2, "cancelled": 1}
    assert tally.failed == 3


def test_counts_that_cannot_be_are_told() -> None:
    tally = Tally()
    for record in (
        OK,
        replace(OK, error="9 cached of 7"),
        replace(OK, outcome="timeout", error="x"),
    ):
        tally.add(record)
    assert tally.odd_counts == 1
    figures = {"duration_s": 1.0, "diversity": None, "server": None, "client_saturated": False}
    summary = summarize(tally, **figures) | {"stats_reset_s": None, "lost_workers": 0}
    assert summary["odd_counts"] == 1
    told = "cached tokens: 1 of 2 replies told more of them than their prompt has"
    assert any(told in line for line in summary_lines(summary))


def test_goodput_is_a_share_of_what_was_held_against_an_objective() -> None:
    tally = Tally()
    assert (tally.good, tally.figure("goodput_share")) == (None, None)
    for met in (True, True, False, None):
        tally.add(replace(OK, slo_met=met))
    assert (tally.good, tally.figure("goodput_share")) == (2, pytest.approx(2 / 3))
    assert Tally.from_wire(tally.to_wire()).figure("goodput_share") == pytest.approx(2 / 3)
