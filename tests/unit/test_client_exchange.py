"""Times and counts of one exchange."""

import pytest

from loadgen.client.exchange import Exchange
from loadgen.client.protocol import TOKEN, Event, Usage


def absorbed(*events: tuple[Event, float], is_asked: bool = False) -> Exchange:
    exchange = Exchange(sent_at=9.0)
    exchange.usage_runs_along = is_asked
    for event, received_at in events:
        exchange.absorb(event, received_at)
    return exchange


def closing(output_tokens: int | None) -> Event:
    return Event(content=False, usage=Usage(7, None, output_tokens))


FINISH = Event(content=True, in_choice=True, finish_reason="length")


def test_times_come_from_events_with_output() -> None:
    exchange = absorbed(
        (Event(content=False, in_choice=True), 10.0),
        (TOKEN, 10.5),
        (TOKEN, 10.75),
        (FINISH, 11.5),
        (closing(3), 11.6),
    )
    assert exchange.first_token_at == 10.5
    assert exchange.gaps_ms == [250.0, 750.0]
    assert exchange.tpot_ms == 500.0
    assert exchange.end_at == 11.6
    assert exchange.complete


def test_tpot_counts_tokens_where_events_carry_several() -> None:
    assert absorbed((TOKEN, 1.0), (FINISH, 2.0), (closing(5), 2.0)).tpot_ms == 250.0


@pytest.mark.parametrize("output_tokens", [None, 0])
def test_tpot_needs_stated_tokens(output_tokens: int | None) -> None:
    exchange = absorbed((TOKEN, 1.0), (FINISH, 2.0), (closing(output_tokens), 2.0))
    exchange.succeed()
    assert (exchange.tpot_ms, exchange.output_tokens, exchange.error) == (None, None, "")


def test_fewer_tokens_than_events_are_as_many() -> None:
    exchange = absorbed((TOKEN, 1.0), (TOKEN, 2.0), (FINISH, 3.0), (closing(1), 3.0))
    assert exchange.tpot_ms == 1000.0
    assert absorbed((FINISH, 2.0), (closing(1), 2.0)).tpot_ms is None


def test_tpot_of_one_event_is_unknown() -> None:
    assert absorbed((FINISH, 2.0), (closing(5), 2.0)).tpot_ms is None


def test_nothing_is_known_before_it_happens() -> None:
    exchange = Exchange()
    assert exchange.first_token_at is None
    assert exchange.gaps_ms == []
    assert (exchange.prompt_tokens, exchange.cached_tokens, exchange.output_tokens) == (None,) * 3
    assert exchange.outcome == "cancelled"
    assert not exchange.complete


def test_a_count_with_the_finish_alone_is_no_token() -> None:
    """Hosts that send their usage with the finish reason, and not after it."""
    finish = Event(False, True, "stop", Usage(7, None, 2))
    exchange = absorbed((TOKEN, 1.0), (TOKEN, 2.0), (finish, 3.0))
    assert list(exchange.token_times) == [1.0, 2.0]
    assert (exchange.output_tokens, exchange.tpot_ms, exchange.end_at) == (2, 1000.0, 3.0)


def test_a_running_usage_reveals_tokens_without_text() -> None:
    def running(output_tokens: int) -> Event:
        return Event(content=False, in_choice=True, usage=Usage(7, None, output_tokens))

    counts = ((running(0), 1.0), (running(1), 2.0), (running(1), 3.0), (running(3), 4.0))
    exchange = absorbed(*counts, is_asked=True)
    assert list(exchange.token_times) == [2.0, 4.0]
    assert exchange.output_tokens == 3
    assert not exchange.complete
    # Unasked, a text has to show first that the usage counts along.
    text = Event(content=True, in_choice=True, usage=Usage(7, None, 4))
    assert len(absorbed(*counts).token_times) == 0
    assert list(absorbed(*counts, (text, 5.0), (running(5), 6.0)).token_times) == [5.0, 6.0]


def test_the_closing_usage_is_no_token() -> None:
    assert len(absorbed((FINISH, 1.0), (closing(5), 2.0)).token_times) == 1


def test_a_later_usage_without_cached_tokens_keeps_them() -> None:
    exchange = absorbed((Event(content=False, usage=Usage(7, 5, 1)), 1.0), (closing(None), 2.0))
    assert (exchange.cached_tokens, exchange.output_tokens) == (5, 1)


def test_a_usage_before_the_finish_does_not_close_the_reply() -> None:
    exchange = absorbed((closing(1), 1.0), (FINISH, 2.0))
    assert not exchange.complete
    exchange.close(3.0)
    assert exchange.complete


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_engine_that_gave_up_is_not_complete(reason: str) -> None:
    given_up = Event(content=False, in_choice=True, finish_reason=reason)
    assert not absorbed((TOKEN, 1.0), (given_up, 2.0), (closing(1), 2.0)).complete
