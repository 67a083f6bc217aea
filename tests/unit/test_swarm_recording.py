"""The row of a request, the percentiles of its gaps, and a worker's rows on their way."""

from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
import pytest

from loadgen.client.exchange import Exchange
from loadgen.context import Request
from loadgen.record import COLUMNS, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.stats.counts import Counts
from loadgen.stats.token_gaps import percentiles, spread
from loadgen.swarm.leading.follower import Follower
from loadgen.swarm.sending.ledger import WorkerLedger
from loadgen.swarm.sending.recording import to_record


@pytest.mark.parametrize("count", [1, 2, 3, 20, 101, 1000])
def test_percentiles_interpolate_as_numpy_does(count: int) -> None:
    ordered = sorted(((7 * n) % 101) / 3 for n in range(count))
    assert percentiles(ordered) == pytest.approx(np.percentile(ordered, (50, 95, 99)))


def test_without_gaps_there_are_none() -> None:
    assert spread([]) == (None,) * 5


@pytest.mark.parametrize(("sent_at", "told"), [(7.0, 1), (None, None)])
def test_a_request_that_was_sent_again_says_so(sent_at: float | None, told: int | None) -> None:
    row, _ = recorded(Exchange(sent_at=sent_at, end_at=8.0, resends=1))
    assert row.resends == told


def recorded(exchange: Exchange) -> tuple[RequestRecord, list[float]]:
    request = Request(0, 0, "c", "q", "question", "prompt", "c", 4)
    clock = RunClock(0.0)
    return to_record(
        exchange, request, scheduled_at=7.0, clock=clock, worker="0", user="u", repeat=False
    )


@pytest.mark.parametrize("kind", [ConnectionError, gevent.GreenletExit])
def test_a_worker_keeps_what_could_not_be_sent_and_sends_it_once(
    kind: type[BaseException],
) -> None:
    sent: list[dict[str, Any]] = []
    failures = [kind(), kind()]

    def send(message: dict[str, Any]) -> None:
        if failures:
            raise failures.pop()
        sent.append(message)

    ledger = WorkerLedger(send)
    for resends in (1, 2):
        ledger.add([recorded(Exchange(sent_at=7.0, end_at=8.0, resends=resends))])
        with pytest.raises(kind):
            ledger.flush()
    ledger.flush()
    ledger.flush()
    rows = [message["rows"].split(",") for message in sent]
    assert [row[COLUMNS.index("resends")] for row in rows] == ["1", "2"]
    counts = [Counts.from_wire(message["counts"]).whole for message in sent]
    assert [each.requests for each in counts] == [1, 1]


def test_rows_whose_sending_the_end_of_the_run_interrupts_go_with_the_last_ones() -> None:
    sent: list[str] = []
    pauses_s = [60.0]

    def send(message: dict[str, Any]) -> None:
        gevent.sleep(pauses_s.pop() if pauses_s else 0.0)
        sent.append(message["rows"])

    ledger = WorkerLedger(send)
    ledger.add([recorded(Exchange(sent_at=7.0, end_at=8.0))])
    runner: Any = SimpleNamespace(greenlet=SimpleNamespace(spawn=lambda ask: None))
    stage: Any = SimpleNamespace(close=ledger.flush)
    follower = Follower(SimpleNamespace(runner=runner), stage)
    follower._sender = gevent.spawn(ledger.flush)
    gevent.sleep(0)
    follower.stopped()
    assert len(sent) == 1
