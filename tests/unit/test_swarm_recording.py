"""The row of a request, and the percentiles of its gaps."""

import numpy as np
import pytest

from loadgen.client.exchange import Exchange
from loadgen.context import Request
from loadgen.stats.clock import RunClock
from loadgen.stats.token_gaps import percentiles, spread
from loadgen.swarm.sending.recording import to_record


@pytest.mark.parametrize("count", [1, 2, 3, 20, 101, 1000])
def test_percentiles_interpolate_as_numpy_does(count: int) -> None:
    ordered = sorted(((7 * n) % 101) / 3 for n in range(count))
    assert percentiles(ordered) == pytest.approx(np.percentile(ordered, (50, 95, 99)))


def test_without_gaps_there_are_none() -> None:
    assert spread([]) == (None,) * 5


@pytest.mark.parametrize(("sent_at", "told"), [(7.0, 1), (None, None)])
def test_a_request_that_was_sent_again_says_so(sent_at: float | None, told: int | None) -> None:
    exchange = Exchange(sent_at=sent_at, end_at=8.0, resends=1)
    request = Request(0, 0, "c", "q", "question", "prompt", "c", 4)
    clock = RunClock(0.0)
    row, _ = to_record(
        exchange, request, scheduled_at=7.0, clock=clock, worker="0", user="u", repeat=False
    )
    assert row.resends == told
