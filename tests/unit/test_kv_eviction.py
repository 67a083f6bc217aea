"""What tiers of bounded bytes give up: each policy on traces that tell them apart."""

import random
from collections.abc import Iterator

import pytest

from kv_tiers.store.evictions import EVICTIONS
from kv_tiers.store.evictions.cost import CostAwareEviction
from kv_tiers.trials.evicting import Context, TracedChunk, TracedTier

CAPACITY = 100


class CountedTier:
    """Bytes in a tier, hits, and the computing that they saved."""

    def __init__(self, name: str, capacity: int = CAPACITY) -> None:
        self.policy, self.capacity = EVICTIONS[name](capacity), capacity
        self.sizes: dict[bytes, int] = {}
        self.hits, self.asked, self.saved_s = 0, 0, 0.0

    def ask(self, key: bytes, size: int = 1, recompute_s: float = 1.0) -> None:
        self.asked += 1
        if key in self.sizes:
            self.policy.use(key)
            self.hits += 1
            self.saved_s += recompute_s
            return
        while sum(self.sizes.values()) + size > self.capacity:
            victim = self.policy.victim()
            assert victim in self.sizes, "of what is there"
            del self.sizes[victim]
        self.sizes[key] = size
        self.policy.add(key, size, recompute_s)
        self.policy.use_context([key])

    @property
    def rate(self) -> float:
        return self.hits / self.asked


def name(n: int) -> bytes:
    return b"%d" % n


def hot_and_scans() -> Iterator[bytes]:
    """Sixty that are used again and again, and between them long runs that are read once."""
    rng, once = random.Random(1), 1000
    for _ in range(60):
        for _ in range(100):
            yield name(rng.randrange(60))
        for _ in range(150):
            once += 1
            yield name(once)


def popular_of_today() -> Iterator[bytes]:
    """Eighty that are used often, then eighty others, again and again."""
    rng = random.Random(2)
    for day in range(10):
        for _ in range(800):
            yield name(80 * day + rng.randrange(80))


def rates(trace: list[bytes]) -> dict[str, float]:
    found = {}
    for policy in EVICTIONS:
        tier = CountedTier(policy)
        for key in trace:
            tier.ask(key)
        found[policy] = tier.rate
    return found


def test_scans_push_out_what_is_hot_by_time_alone() -> None:
    found = rates([*hot_and_scans()])
    assert found["lfu"] > found["lru"] + 0.1
    assert found["arc"] > found["lru"] + 0.05


def test_what_was_popular_once_stays_too_long_by_counts_alone() -> None:
    found = rates([*popular_of_today()])
    assert found["lru"] > found["lfu"] + 0.2
    assert found["arc"] > found["lfu"] + 0.2


def test_costs_decide_what_is_worth_its_bytes() -> None:
    rng = random.Random(3)
    saved = {}
    for policy in EVICTIONS:
        tier = CountedTier(policy)
        for _ in range(6000):
            n = rng.randrange(120)
            dear = n % 4 == 0
            tier.ask(name(n), 1 + n % 3, 10.0 if dear else 1.0)
        saved[policy] = tier.saved_s
    assert saved["cost"] > 1.15 * max(saved[other] for other in ("lru", "lfu", "arc"))


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_policy_names_only_what_is_there_and_each_once(policy: str) -> None:
    rng = random.Random(4)
    tier = CountedTier(policy)
    for _ in range(5000):
        n = rng.randrange(200)
        if rng.random() < 0.1 and (key := name(n)) in tier.sizes:
            tier.policy.remove(key)
            del tier.sizes[key]
        else:
            tier.ask(name(n), 1 + n % 20, 1 + n % 7)
        assert sum(tier.sizes.values()) <= CAPACITY
    left = set(tier.sizes)
    assert {tier.policy.victim() for _ in range(len(left))} == left


@pytest.mark.parametrize("policy", ["lru", "arc", "cost"])
def test_the_end_of_a_prefix_goes_before_its_beginning(policy: str) -> None:
    tier = CountedTier(policy)
    for n in (*range(10), *reversed(range(10))):
        tier.ask(name(n))
    assert [tier.policy.victim() for _ in range(10)] == [name(n) for n in reversed(range(10))]


def context(number: int, chunks: int, size: int = 1, times: float = 1.0) -> Context:
    """Each later chunk takes longer: attention reads all before it."""
    return tuple(
        TracedChunk(b"%d of %d" % (at, number), size, times * (1 + at)) for at in range(chunks)
    )


def of_contexts(policy: str, contexts: list[Context], capacity: int, seed: int) -> TracedTier:
    rng = random.Random(seed)
    tier = TracedTier(EVICTIONS[policy](capacity))
    for _ in range(2000):
        tier.ask(rng.choice(contexts))
    return tier


def test_of_contexts_the_dear_ones_stay_whole() -> None:
    contexts = [context(n, 8, size=1 + n % 3, times=8.0 if n % 4 == 0 else 1.0) for n in range(60)]
    saved = {each: of_contexts(each, contexts, 240, seed=5).saved_share for each in EVICTIONS}
    assert saved["cost"] > 1.3 * max(saved[other] for other in ("lru", "lfu", "arc"))


def test_where_contexts_cost_the_same_cost_is_lru() -> None:
    contexts = [context(n, 8) for n in range(60)]
    lru, cost = (of_contexts(each, contexts, 19 * 8, seed=6) for each in ("lru", "cost"))
    assert 0 < lru.saved_share < 0.5
    assert (cost.saved_share, cost.byte_hit_share) == (lru.saved_share, lru.byte_hit_share)


def test_a_shared_beginning_outlives_what_is_behind_it() -> None:
    """Also when it was last used in front of something cheap."""
    policy = CostAwareEviction(CAPACITY)
    for key, recompute_s in ((b"shared", 1.0), (b"dear", 99.0), (b"cheap", 0.1)):
        policy.add(key, 1, recompute_s)
    policy.use_context([b"shared", b"dear"])
    policy.use_context([b"shared", b"cheap"])
    assert [policy.victim() for _ in range(3)] == [b"cheap", b"dear", b"shared"]


def test_arc_does_not_take_the_context_a_chunk_came_with_for_a_second_use() -> None:
    hot = [context(n, 4) for n in range(12)]
    shares = {}
    for each in ("lru", "arc"):
        tier, rng = TracedTier(EVICTIONS[each](100)), random.Random(7)
        for number in range(1500):
            tier.ask(rng.choice(hot) if number % 3 else context(100 + number, 4))
        shares[each] = tier.byte_hit_share
    assert shares["arc"] > shares["lru"] + 0.05
