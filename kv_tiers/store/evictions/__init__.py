"""Evictions of a tier, a file each, by name."""

from collections.abc import Callable, Mapping

from kv_tiers.store.evictions.arc import ArcEviction
from kv_tiers.store.evictions.cost import CostAwareEviction
from kv_tiers.store.evictions.eviction import TierEviction
from kv_tiers.store.evictions.lfu import LfuEviction
from kv_tiers.store.evictions.lru import LruEviction

EVICTIONS: Mapping[str, Callable[[int], TierEviction]] = {
    each.name: each for each in (LruEviction, LfuEviction, ArcEviction, CostAwareEviction)
}
