"""What counts of a run, and what was due in its warm-up."""

import json
from dataclasses import replace
from typing import Any

import pytest

from loadgen.record import BatchRecord, RequestRecord
from loadgen.stats.counts import Counts

KNOWN: dict[str, Any] = dict.fromkeys(RequestRecord.__dataclass_fields__)
OK = RequestRecord(**KNOWN | {"outcome": "ok", "scheduled_s": 0.0, "sent_s": 0.0, "end_s": 1.0})
BATCH = BatchRecord("0", "0", "u", 1, 1, 1, 0.0, 0.0, None, None, 2.0, 2.0, None, None, "ok")


def due(at_s: float, ttft_ms: float = 5.0, **more: Any) -> tuple[RequestRecord, list[float]]:
    times = {"scheduled_s": at_s, "sent_s": at_s, "end_s": at_s + 1, "ttft_ms": ttft_ms}
    return replace(OK, **times, **more), [ttft_ms]


def filled(warmup_s: float | None) -> Counts:
    counts = Counts(warmup_s)
    counts.add_many([due(0.0, 900.0), due(9.99, 800.0, outcome="timeout"), due(10.0), due(11.0)])
    counts.add_batch(replace(BATCH, scheduled_s=9.0))
    counts.add_batch(replace(BATCH, scheduled_s=10.0))
    return counts


def told(counts: Counts) -> list[tuple[Any, ...]]:
    return [
        (
            tally.requests,
            tally.failed,
            tally.sketches["ttft_ms"].max,
            tally.sketches["itl_ms"].count,
            tally.batch_outcomes,
            tally.first_sent_s,
        )
        for tally in (counts.warmup, counts.counted, counts.whole)
    ]


def test_what_was_due_in_the_warmup_does_not_count() -> None:
    early, late, whole = told(filled(10.0))
    assert early == (2, 1, 900.0, 1, {"ok": 1}, 0.0)
    assert late == (2, 0, 5.0, 2, {"ok": 1}, 10.0)
    assert whole == (4, 1, 900.0, 3, {"ok": 2}, 0.0)


def test_without_a_warmup_everything_counts() -> None:
    counts = filled(0.0)
    assert counts.whole is counts.counted
    assert counts.counted.requests == 4
    counts.add_many([due(-0.2)])
    assert counts.counted.requests == 5, "a worker's clock may be behind"


def test_workers_deltas_add_up_over_the_wire() -> None:
    worker, master = filled(10.0), Counts(10.0)
    for _ in range(2):
        master.merge(Counts.from_wire(json.loads(json.dumps(worker.take().to_wire()))))
        assert told(worker)[2][0] == 0
    assert told(master) == told(filled(10.0))
    assert "warmup" not in worker.take().to_wire(), "half a second later there is nothing of it"


def test_a_warmup_that_is_known_at_the_end_is_left_out_then() -> None:
    worker, master = filled(None), Counts(None)
    master.merge(Counts.from_wire(json.loads(json.dumps(worker.take().to_wire()))))
    worker.add_many([due(30.0, outcome="timeout")])
    master.merge(Counts.from_wire(json.loads(json.dumps(worker.take().to_wire()))))
    assert told(master)[0][0] == 0
    assert master.counted.requests == 5, "until then everything counts"
    master.leave_out(9.995)
    assert 9.995 < (master.warmup_s or 0) < 10.6
    expected = Counts(master.warmup_s)
    expected.add_many([due(0.0, 900.0), due(9.99, 800.0, outcome="timeout"), due(10.0), due(11.0)])
    expected.add_many([due(30.0, outcome="timeout")])
    early, late, whole = told(master)
    assert early[:4] == told(expected)[0][:4]
    assert late[:4] == told(expected)[1][:4]
    assert whole[:5] == (5, 2, 900.0, 3, {"ok": 2})


@pytest.mark.parametrize("until_s", [0.05, 1.0, 9.99, 100.0, 3600.0])
def test_a_span_more_is_left_out_at_most(until_s: float) -> None:
    counts = Counts(None)
    times_s = [until_s * share for share in (0.0, 0.5, 0.999, 1.2, 2.0)]
    counts.add_many([due(at_s) for at_s in times_s])
    counts.leave_out(until_s)
    assert counts.warmup_s is not None
    assert until_s <= counts.warmup_s <= 1.05 * until_s + 0.1
    early = [at_s for at_s in times_s if at_s < counts.warmup_s]
    assert (counts.warmup.requests, counts.counted.requests) == (len(early), 5 - len(early))


def test_what_nothing_is_left_out_of_is_as_it_was() -> None:
    counts = filled(None)
    counts.leave_out(0.0)
    assert (counts.warmup_s, counts.whole is counts.counted) == (0.0, True)
    assert counts.counted.requests == 4
