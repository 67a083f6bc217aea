import json
from collections.abc import Sequence
from dataclasses import asdict
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.diversity import Bucket, Recency, measure_diversity

ids = st.lists(st.sampled_from("abcdefghij"), max_size=400)


def naive_distances(keys: Sequence[object]) -> list[int | None]:
    stack: list[object] = []
    found: list[int | None] = []
    for key in keys:
        found.append(stack.index(key) if key in stack else None)
        if key in stack:
            stack.remove(key)
        stack.insert(0, key)
    return found


def distances(keys: Sequence[str] | Sequence[int]) -> list[int | None]:
    recency = Recency()
    return [recency.use(key) for key in keys]


@given(ids)
def test_distances_are_the_depths_in_an_lru_stack(keys: list[str]) -> None:
    assert distances(keys) == naive_distances(keys)


@given(st.lists(st.integers(0, 400), min_size=500, max_size=900))
@settings(max_examples=20, deadline=None)
def test_distances_survive_the_slots_being_dealt_anew(keys: list[int]) -> None:
    assert distances(keys) == naive_distances(keys)


def test_cycles_of_a_thousand() -> None:
    assert distances(list(range(1000)) * 3) == [None] * 1000 + [999] * 2000


@given(ids.filter(bool))
def test_figures_agree_with_their_definitions(keys: list[str]) -> None:
    found = measure_diversity(iter(keys))
    reuses = sorted(each for each in naive_distances(keys) if each is not None)
    shares = [keys.count(key) / len(keys) for key in set(keys)]
    assert (found.requests, found.distinct_contexts) == (len(keys), len(set(keys)))
    assert found.entropy_bits == pytest.approx(-sum(share * log2(share) for share in shares))
    assert found.effective_contexts == pytest.approx(2**found.entropy_bits)
    assert found.top_context_share == max(shares)
    reuse = found.reuse_distance
    assert (reuse.count, reuse.first_uses) == (len(reuses), len(set(keys)))
    if reuses:
        assert reuse.mean == pytest.approx(sum(reuses) / len(reuses))
        found_at = [reuse.p50, reuse.p90, reuse.p99]
        assert found_at == pytest.approx(np.percentile(reuses, (50, 90, 99)))
        assert reuse.max == reuses[-1]
    assert sum(bucket.count for bucket in reuse.histogram) == len(reuses)
    for bucket in reuse.histogram:
        assert bucket.count == sum(bucket.low <= each <= bucket.high for each in reuses)


def test_buckets_are_powers_of_two() -> None:
    keys = ["a", "a", "b", "c", "d", "e", "a", "e"]
    assert measure_diversity(keys).reuse_distance.histogram == (
        Bucket(0, 0, 1),
        Bucket(1, 1, 1),
        Bucket(2, 3, 0),
        Bucket(4, 7, 1),
    )


def test_even_use_is_as_diverse_as_its_contexts() -> None:
    found = measure_diversity(["a", "b", "c", "d"] * 25)
    assert found.effective_contexts == pytest.approx(4)
    assert found.top_context_share == 0.25


def test_one_context_is_no_diversity() -> None:
    found = measure_diversity(["a"] * 10)
    assert (found.entropy_bits, found.effective_contexts) == (0.0, 1.0)
    assert found.reuse_distance.max == 0


def test_an_empty_run_has_no_figures_but_is_json() -> None:
    found = measure_diversity([])
    assert (found.requests, found.effective_contexts, found.top_context_share) == (0, 0.0, 0.0)
    assert json.loads(json.dumps(asdict(found)))["reuse_distance"]["p50"] is None
