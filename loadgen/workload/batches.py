"""Batches: neighbouring requests of the swarm's one stream that go out at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal, get_args

from loadgen.context import Draw
from loadgen.errors import UsageError
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.stream import Stream

Order = Literal["shuffled", "grouped"]
ORDERS: tuple[Order, ...] = get_args(Order)

MAX_BATCH_SIZE = 100_000
MAX_BATCHES = 10**9


@dataclass(frozen=True, slots=True)
class Batching:
    """How the stream is cut into batches.

    `size` is in requests. `order` is that inside a batch: `shuffled` is the stream's own,
    `grouped` sorts by context, contexts in the order of their first appearance. `limit` is how
    many batches the whole swarm sends, None for no end. Raises UsageError for what is out of
    range.
    """

    size: int = 12
    order: Order = "shuffled"
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_BATCH_SIZE:
            raise UsageError(
                f"--batch-size {self.size} is out of range: give 1 to {MAX_BATCH_SIZE} requests"
            )
        if self.limit is not None and not 1 <= self.limit <= MAX_BATCHES:
            raise UsageError(
                f"--batches {self.limit} is out of range: give up to {MAX_BATCHES}, or 0 for no end"
            )

    def share(self, worker_index: int, workers: int) -> int | None:
        """How many of the batches this worker sends, None for no end."""
        return None if self.limit is None else len(range(worker_index, self.limit, workers))


def batched_draws(
    settings: WorkloadSettings, batching: Batching, worker_index: int = 0, workers: int = 1
) -> Iterator[tuple[int, list[Draw]]]:
    """The numbers and draws of the batches that one worker owns, in order.

    Batch b holds the positions b * size to (b + 1) * size - 1 of the stream and belongs to worker
    b % workers, so that neither the number of workers nor that of users changes any batch.
    """
    stream = Stream(settings)
    for index in islice(count(), batching.limit):
        draws = list(islice(stream, batching.size))
        if index % workers == worker_index:
            yield index, grouped(draws) if batching.order == "grouped" else draws


def grouped(draws: list[Draw]) -> list[Draw]:
    """Stably sorted by context, contexts in the order of their first appearance."""
    groups: dict[int, list[Draw]] = {}
    for draw in draws:
        groups.setdefault(draw.context_index, []).append(draw)
    return [draw for group in groups.values() for draw in group]
