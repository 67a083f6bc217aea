from collections import Counter
from itertools import chain, islice, pairwise, takewhile
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.context import Draw
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.stream import Popularity, Stream

DRAWS = 300
by_index = attrgetter("index")
some_settings = st.builds(
    WorkloadSettings,
    seed=st.integers(-(2**65), 2**65),
    contexts=st.integers(1, 200),
    zipf=st.sampled_from([0.0, 0.5, 1.0, 3.0, 500.0]),
    stickiness=st.sampled_from([0.0, 0.3, 1.0]),
    repeat=st.sampled_from([0.0, 0.2, 0.9]),
)


def draws(chosen: WorkloadSettings, count: int = DRAWS) -> list[Draw]:
    return list(islice(Stream(chosen), count))


def share(chosen: WorkloadSettings) -> list[float]:
    """Each context's share of 20,000 draws, the most popular first."""
    uses = Counter(draw.context_index for draw in draws(chosen, 20_000))
    return [count / 20_000 for _, count in uses.most_common()]


@given(some_settings, st.integers(1, 5))
@settings(deadline=None)
def test_the_workers_together_send_what_one_alone_would(
    chosen: WorkloadSettings, workers: int
) -> None:
    shares = [
        list(takewhile(lambda draw: draw.index < DRAWS, Stream(chosen, worker, workers)))
        for worker in range(workers)
    ]
    for worker, share in enumerate(shares):
        assert all(draw.root % workers == worker for draw in share)
        assert share == sorted(share, key=by_index)
    assert sorted(chain.from_iterable(shares), key=by_index) == draws(chosen)


@given(some_settings)
def test_the_same_settings_give_the_same_draws(chosen: WorkloadSettings) -> None:
    assert draws(chosen) == draws(chosen)


@given(some_settings)
def test_each_prompt_is_new_or_that_of_its_root(chosen: WorkloadSettings) -> None:
    asked: Counter[int] = Counter()
    prompts: dict[int, tuple[int, int]] = {}
    for index, draw in enumerate(draws(chosen)):
        assert draw.index == index
        assert 0 <= draw.context_index < chosen.contexts
        prompt = draw.context_index, draw.question_number
        if draw.root == index:
            assert draw.question_number == asked[draw.context_index]
            asked[draw.context_index] += 1
            prompts[index] = prompt
        assert prompts[draw.root] == prompt


def test_without_repeat_no_prompt_comes_twice() -> None:
    chosen = WorkloadSettings(contexts=5, zipf=1.0, stickiness=0.5)
    assert all(draw.root == draw.index for draw in draws(chosen, 5000))


def test_another_seed_gives_another_order() -> None:
    assert draws(WorkloadSettings(seed=1)) != draws(WorkloadSettings(seed=2))


@pytest.mark.parametrize("repeat", [0.1, 0.5, 0.9])
def test_repeats_are_as_frequent_as_asked(repeat: float) -> None:
    some = draws(WorkloadSettings(contexts=50, repeat=repeat), 20_000)
    repeated = sum(draw.root != draw.index for draw in some) / 20_000
    assert repeated == pytest.approx(repeat, abs=0.02)


def test_all_earlier_prompts_are_repeated_alike() -> None:
    some = draws(WorkloadSettings(contexts=50, repeat=0.5), 20_000)
    late = [draw.root for draw in some[10_000:] if draw.root != draw.index]
    early_half = sum(root < 7_500 for root in late) / len(late)
    # Chosen among n prompts: 7,500 / n, averaged over n from 10,000 to 20,000.
    assert early_half == pytest.approx(0.52, abs=0.04)


@pytest.mark.parametrize("stickiness", [0.0, 0.3, 0.9, 1.0])
def test_contexts_are_kept_as_often_as_asked(stickiness: float) -> None:
    some = draws(WorkloadSettings(contexts=1000, stickiness=stickiness), 20_000)
    kept = sum(one.context_index == next_one.context_index for one, next_one in pairwise(some))
    assert kept / 20_000 == pytest.approx(stickiness + (1 - stickiness) / 1000, abs=0.02)


def test_a_repeat_makes_its_context_the_current_one() -> None:
    some = draws(WorkloadSettings(contexts=1000, stickiness=1.0, repeat=0.5), 2000)
    for one, next_one in pairwise(some):
        if next_one.root == next_one.index:
            assert next_one.context_index == one.context_index


def test_without_zipf_all_contexts_are_alike() -> None:
    shares = share(WorkloadSettings(contexts=20))
    assert len(shares) == 20
    assert 0.04 < shares[-1] <= shares[0] < 0.06


@pytest.mark.parametrize("zipf", [0.5, 1.0, 2.0])
def test_popularity_follows_zipf(zipf: float) -> None:
    weights = [rank**-zipf for rank in range(1, 21)]
    shares = share(WorkloadSettings(contexts=20, zipf=zipf))
    expected = [weight / sum(weights) for weight in weights]
    assert shares[:5] == pytest.approx(expected[:5], rel=0.2)


def test_the_most_popular_context_depends_on_the_seed() -> None:
    first = {Popularity(100, 5.0, seed).pick(0.0) for seed in range(50)}
    assert len(first) > 20


@given(st.integers(1, 300), st.sampled_from([0.0, 1e-9, 1.0, 1e6]), st.integers())
def test_a_pick_is_a_context_at_both_ends_of_chance(contexts: int, zipf: float, seed: int) -> None:
    popularity = Popularity(contexts, zipf, seed)
    for chance in (0.0, 0.5, 1 - 2**-53):
        assert 0 <= popularity.pick(chance) < contexts


@pytest.mark.parametrize(("worker_index", "workers"), [(1, 1), (-1, 2), (0, 0)])
def test_a_worker_is_one_of_the_workers(worker_index: int, workers: int) -> None:
    with pytest.raises(ValueError, match="worker_index"):
        Stream(WorkloadSettings(), worker_index, workers)


def test_the_sequence_of_a_seed_does_not_change_with_versions() -> None:
    chosen = WorkloadSettings(seed=42, contexts=100, zipf=1.0, stickiness=0.2, repeat=0.2)
    assert [draw.context_index for draw in draws(chosen, 12)] == GOLDEN


GOLDEN = [97, 97, 71, 97, 71, 71, 81, 28, 83, 66, 79, 75]
