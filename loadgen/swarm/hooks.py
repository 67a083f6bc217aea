"""Who hears what a session has seen."""

from collections.abc import Callable
from dataclasses import dataclass

from loadgen.record import BatchRecord, RequestRecord
from loadgen.stats.self_watch import ClientSample


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who is told what, on the loop; none of them may block.

    `row` is a request's record with its inter-token gaps in ms. `spent` is called once, when the
    last of a limited number of requests or batches has ended; a `share` of 0 is spent from the
    start. `failed` is told why no further request can be made, as when a trace has vanished.
    """

    row: Callable[[RequestRecord, list[float]], None]
    sample: Callable[[ClientSample], None]
    batch: Callable[[BatchRecord], None] = lambda record: None
    spent: Callable[[], None] = lambda: None
    failed: Callable[[Exception], None] = lambda error: None
