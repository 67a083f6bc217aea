"""How the stream is cut into batches, whoever sends them."""

from itertools import chain, islice, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.context import Draw
from loadgen.errors import UsageError
from loadgen.workload.batches import Batching, batched_draws, grouped
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.stream import Stream
from loadgen.workload.workload import Workload

BATCHES = 12
some_settings = st.builds(
    WorkloadSettings,
    seed=st.integers(0, 2**32),
    contexts=st.integers(1, 30),
    zipf=st.sampled_from([0.0, 1.0]),
    stickiness=st.sampled_from([0.0, 0.5]),
    repeat=st.sampled_from([0.0, 0.5]),
)
some_batching = st.builds(
    Batching,
    size=st.integers(1, 9),
    order=st.sampled_from(["shuffled", "grouped"]),
    limit=st.just(BATCHES),
)


@given(some_settings, some_batching)
@settings(deadline=None)
def test_the_batches_cut_up_the_one_stream(chosen: WorkloadSettings, batching: Batching) -> None:
    batches = list(batched_draws(chosen, batching))
    assert [index for index, _ in batches] == list(range(BATCHES))
    stream = list(islice(Stream(chosen), BATCHES * batching.size))
    for index, draws in batches:
        cut = stream[index * batching.size : (index + 1) * batching.size]
        assert draws == (grouped(cut) if batching.order == "grouped" else cut)
        assert sorted(draw.index for draw in draws) == [draw.index for draw in cut]


@given(some_settings, some_batching, st.integers(1, 5))
@settings(deadline=None)
def test_the_number_of_workers_changes_no_batch(
    chosen: WorkloadSettings, batching: Batching, workers: int
) -> None:
    shares = [list(batched_draws(chosen, batching, w, workers)) for w in range(workers)]
    for worker, share in enumerate(shares):
        assert all(index % workers == worker for index, _ in share)
        assert len(share) == batching.share(worker, workers)
    together = sorted(chain.from_iterable(shares), key=lambda batch: batch[0])
    assert together == list(batched_draws(chosen, batching))


def test_without_a_limit_there_is_no_end() -> None:
    batches = batched_draws(WorkloadSettings(), Batching(size=2))
    assert [index for index, _ in islice(batches, 500)] == list(range(500))
    assert Batching().share(0, 3) is None


def test_fewer_batches_than_workers_leave_some_without() -> None:
    assert [Batching(limit=2).share(worker, 3) for worker in range(3)] == [1, 1, 0]
    assert list(batched_draws(WorkloadSettings(), Batching(limit=2), 2, 3)) == []


def test_grouped_keeps_the_order_of_contexts_and_inside_them() -> None:
    draws = [Draw(i, context, i, i) for i, context in enumerate([3, 1, 3, 2, 1, 3])]
    assert [draw.index for draw in grouped(draws)] == [0, 2, 5, 1, 4, 3]


def test_batches_have_the_very_requests_of_the_stream() -> None:
    chosen = WorkloadSettings(contexts=5, repeat=0.3, seed=4)

    def workload() -> Workload:
        return Workload(load_corpus(), chosen, EstimatedTokens())

    batches = workload().batches(Batching(size=4, limit=5))
    in_batches = [request for batch in batches for request in batch.requests]
    alone = list(takewhile(lambda request: request.index < 20, workload().requests()))
    assert in_batches == alone


@pytest.mark.parametrize("size", [0, -1, 100_001])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="--batch-size"):
        Batching(size=size)


@pytest.mark.parametrize("limit", [-1, 0, 10**10])
def test_a_limit_that_cannot_be_is_refused(limit: int) -> None:
    with pytest.raises(UsageError, match="--batches"):
        Batching(limit=limit)
