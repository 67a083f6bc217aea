"""Where chunks are placed: evenly, in runs, and how many move when nodes come or go."""

from collections import Counter

import pytest

from kv_tiers.store import PLACEMENTS, CircuitBreaker, Placement, StoreKey, StoreNode, in_runs
from kv_tiers.store.placement import WIRE_BYTES, place_of

PLACES = [f"context {n}".encode() for n in range(8000)]


def nodes(count: int) -> list[str]:
    return [f"10.0.0.{n}:6379" for n in range(count)]


def moved(placement: Placement, before: int, after: int) -> float:
    changed = sum(
        placement.order(place, nodes(before))[0] != placement.order(place, nodes(after))[0]
        for place in PLACES
    )
    return changed / len(PLACES)


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("count", [1, 3, 4, 6, 7])
def test_a_placement_orders_all_nodes_evenly(name: str, count: int) -> None:
    placement = PLACEMENTS[name]()
    for place in PLACES[:50]:
        order = placement.order(place, nodes(count))
        assert sorted(order) == nodes(count)
        assert order == placement.order(place, [*reversed(nodes(count)), nodes(count)[0]])
    for rank in range(min(count, 2)):
        held = Counter(placement.order(place, nodes(count))[rank] for place in PLACES)
        assert len(held) == count
        # Prime and composite alike: four standard deviations of a fair share.
        fair = len(PLACES) / count
        assert max(held.values()) - fair < 4 * fair**0.5


@pytest.mark.parametrize(
    ("name", "before", "after", "share"),
    [
        ("rendezvous", 3, 4, 1 / 4),
        ("modulo", 3, 4, 3 / 4),
        ("rendezvous", 6, 7, 1 / 7),
        ("modulo", 6, 7, 6 / 7),
    ],
)
def test_what_moves_when_a_node_is_added(name: str, before: int, after: int, share: float) -> None:
    assert moved(PLACEMENTS[name](), before, after) == pytest.approx(share, abs=0.02)


def test_of_what_a_dead_node_held_nothing_else_moves() -> None:
    placement = PLACEMENTS["rendezvous"]()
    left = [node for node in nodes(5) if node != nodes(5)[2]]
    for place in PLACES[:500]:
        order = placement.order(place, nodes(5))
        assert placement.order(place, left) == tuple(node for node in order if node in left)


def test_a_run_is_placed_by_its_first_chunk() -> None:
    keys = [f"chunk {n}".encode() for n in range(5)]
    places = {length: [name.place for name in in_runs(keys, length)] for length in range(4)}
    assert places[0] == [keys[0]] * 5
    assert places[1] == keys
    assert places[2] == [keys[0], keys[0], keys[2], keys[2], keys[4]]
    assert places[3] == [keys[0]] * 3 + [keys[3]] * 2
    # What a shorter context shares with a longer one lies where that has it.
    for length in range(4):
        assert in_runs(keys[:4], length) == in_runs(keys, length)[:4]
    assert in_runs([]) == []
    with pytest.raises(ValueError, match="give 1 or more, 0 for whole contexts"):
        in_runs(keys, -1)


def test_a_name_tells_its_place_and_not_more() -> None:
    first, other = StoreKey(b"a", b"run"), StoreKey(b"b", b"run")
    assert place_of(first.wire) == place_of(other.wire) != place_of(StoreKey.alone(b"a").wire)
    assert len({first.wire, other.wire, StoreKey.alone(b"a").wire}) == 3
    assert {len(first.wire), len(StoreKey(b"x" * 500, b"").wire)} == {WIRE_BYTES}


def test_a_breaker_lets_one_call_through_in_each_pause() -> None:
    now = 0.0
    breaker = CircuitBreaker(most_failures=2, pause_s=10, clock=lambda: now)
    breaker.failed()
    assert breaker.admits()
    breaker.failed()
    assert breaker.is_open
    assert not breaker.admits()
    now = 10.0
    assert [breaker.admits(), breaker.admits()] == [True, False]
    breaker.failed()
    now = 19.0
    assert not breaker.admits()
    now = 20.0
    assert breaker.admits()
    breaker.succeeded()
    assert not breaker.is_open
    assert [breaker.admits(), breaker.admits()] == [True, True]


@pytest.mark.parametrize("address", ["", ":6379", "host:port", "host:0", "host:70000"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(ValueError, match="is no address of a node: give host:port"):
        StoreNode(address)
