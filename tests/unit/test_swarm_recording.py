"""The row of a request, the percentiles of its gaps, and a worker's rows on their way."""

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
