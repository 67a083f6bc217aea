"""Placements counted: keys that move when a node comes, and how evenly nodes are filled.

Counts are exact, of the same keys for all; nothing is timed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from kv_tiers.store import PLACEMENTS, Placement
from kv_tiers.trials.figures import NetworkFigure

QUESTION = "placement"
KEYS = 50_000
GROWING = (3, 5, 6, 7, 8, 9, 11, 12)
"""Numbers of nodes to which one is added."""
PRIMES = (3, 5, 7, 11)
UNHASHED = "modulo, unhashed"
CHUNK_TOKENS = 256
"""Keys that are not hashed are offsets of chunks of so many tokens."""


class UnhashedModulo(Placement):
    """What a hash is good for: the number that a place is, modulo that of nodes."""

    name = UNHASHED

    def order(self, place: bytes, nodes: Sequence[str]) -> tuple[str, ...]:
        ring = sorted(set(nodes))
        first = int.from_bytes(place) % len(ring)
        return (*ring[first:], *ring[:first])


def place_keys(keys: int = KEYS, growing: Sequence[int] = GROWING) -> Iterator[NetworkFigure]:
    """`moved_keys` and `moved_share` from each N to N + 1; `fullest_to_mean` and `used_nodes` of
    N nodes."""
    places = [(at * CHUNK_TOKENS).to_bytes(8) for at in range(keys)]
    for placement in (*(make() for make in PLACEMENTS.values()), UnhashedModulo()):
        sizes = sorted({*growing, *(count + 1 for count in growing)})
        firsts = {count: _firsts(placement, places, count) for count in sizes}
        for count in growing:
            yield from _grown(placement.name, firsts[count], firsts[count + 1], count)


def _grown(
    name: str, before: Sequence[str], after: Sequence[str], count: int
) -> Iterator[NetworkFigure]:
    moved = sum(was != now for was, now in zip(before, after, strict=True))
    filled = Counter(before)
    for setting, measure, value in (
        (f"{count} to {count + 1}", "moved_keys", float(moved)),
        (f"{count} to {count + 1}", "moved_share", moved / len(before)),
        (f"{count} nodes", "fullest_to_mean", max(filled.values()) * count / len(before)),
        (f"{count} nodes", "used_nodes", float(len(filled))),
        (f"{count} nodes", "keys", float(len(before))),
    ):
        yield NetworkFigure(QUESTION, name, setting, measure, value)


def _firsts(placement: Placement, places: Sequence[bytes], count: int) -> list[str]:
    nodes = [f"10.0.0.{number:03}:6379" for number in range(count)]
    return [placement.order(place, nodes)[0] for place in places]
