"""The trace of a workload that nobody has sent yet."""

from collections.abc import Iterator
from itertools import chain, islice

from loadgen.context import Request
from loadgen.errors import UsageError
from loadgen.locality.token_ids import TokenIds
from loadgen.locality.trace import BlockNames, Trace
from loadgen.workload.batches import Batching
from loadgen.workload.corpus import Corpus
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.workload import Workload

MAX_REQUESTS = 1_000_000


def trace_of_plan(
    corpus: Corpus,
    settings: WorkloadSettings,
    tokens: TokenIds,
    requests: int,
    block_size: int,
    users: int = 1,
    batching: Batching | None = None,
) -> Trace:
    """The first requests that a run with these settings sends, in batches where told so.

    `users` keep one request, or one batch, in flight each; `block_size` is in tokens. Raises
    UsageError for what is out of range.
    """
    _require("--requests", requests, MAX_REQUESTS)
    _require("-u", users, MAX_REQUESTS)
    names = BlockNames(block_size)
    sent = islice(_requests(Workload(corpus, settings, tokens), batching), requests)
    return Trace(
        chains=tuple(names.chain(tokens.ids(each.prompt), each.max_tokens) for each in sent),
        block_size=block_size,
        users=users,
        batch_size=batching.size if batching else 1,
        source="the requests that this workload sends first, as token ids",
    )


def _requests(workload: Workload, batching: Batching | None) -> Iterator[Request]:
    if batching is None:
        return workload.requests()
    return chain.from_iterable(batch.requests for batch in workload.batches(batching))


def _require(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{name} {value} is out of range: give 1 to {most}")
