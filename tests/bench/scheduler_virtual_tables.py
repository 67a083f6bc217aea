"""What vLLM's scheduler object gave on a virtual clock, as Markdown."""

from pathlib import Path

from scheduler_markdown import section, table
from scheduler_rows import (
    AdmissionRow,
    VirtualBatchRow,
    VirtualPoissonRow,
    VirtualStarvationRow,
    read_rows,
)

BATCHES_NOTE = """\
The same kind of batch, exact: medians over seeded orders, `worst` is the most any of them computed.
A batch of C x N asks N questions on each of C contexts. Time is virtual, by a cost per step that
was fitted to the demo model."""
POISSON_NOTE = """\
16 contexts of 1600 tokens on 80 blocks, 400 requests, medians over seeds; capacity is the rate at
which stock works off a full queue. Latency is from arrival to the last token."""
STARVATION_NOTE = """\
Overload of 1.5x capacity: one hot context gets 97 % of the arrivals, 15 cold ones the rest."""
ADMISSION_NOTE = """\
CPU time per request with a long queue. Admission is all of `schedule()` and
`update_from_output()`, arrival is `add_request()`; in the last columns all wait for a grammar,
and a step looks at each in vain."""


def virtual_tables(directory: Path) -> list[str]:
    """A section for each kind of row there is."""
    return [
        section("Batches on the scheduler object", BATCHES_NOTE, _batches(directory)),
        section("Poisson arrivals on the scheduler object", POISSON_NOTE, _poisson(directory)),
        section("A hot context beside cold ones", STARVATION_NOTE, _starvation(directory)),
        section("Cost of the order itself", ADMISSION_NOTE, _admission(directory)),
    ]


def _batches(directory: Path) -> str:
    head = ("batch", "order", "blocks", "computed tokens", "x bound", "worst", "time x stock")
    lines = [
        (
            row.batch,
            row.policy,
            str(row.usable_blocks),
            f"{row.computed_tokens:,.0f}",
            f"{row.over_bound:.2f}",
            f"{row.most_tokens:,}",
            f"{row.total_ratio:.2f}",
        )
        for row in read_rows(VirtualBatchRow, directory)
    ]
    return table(head, lines)


def _poisson(directory: Path) -> str:
    head = ("order", "x capacity", "mean, s", "p99, s", "mean x stock", "p99 x stock", "overtakes")
    lines = [
        (
            row.policy,
            f"{row.load:g}",
            f"{row.mean_s:.2f}",
            f"{row.p99_s:.2f}",
            f"{row.mean_ratio:.2f}",
            f"{row.p99_ratio:.2f}",
            str(row.overtakes),
        )
        for row in read_rows(VirtualPoissonRow, directory)
    ]
    return table(head, lines)


def _starvation(directory: Path) -> str:
    head = ("order", "cold, mean s", "cold, worst s", "hot, mean s", "overtakes of a cold one")
    lines = [
        (
            row.policy,
            f"{row.cold_mean_s:.1f}",
            f"{row.cold_worst_s:.1f}",
            f"{row.hot_mean_s:.1f}",
            str(row.cold_overtakes),
        )
        for row in read_rows(VirtualStarvationRow, directory)
    ]
    return table(head, lines)


def _admission(directory: Path) -> str:
    costs = ("admission, us", "x stock", "arrival, us", "x stock", "none can run, ms", "x stock")
    head = ("order", "waiting", "contexts", *costs)
    lines = [
        (
            row.policy,
            f"{row.waiting:,}",
            f"{row.contexts:,}",
            f"{row.admission_us:.0f}",
            f"{row.admission_ratio:.2f}",
            f"{row.arrival_us:.1f}",
            f"{row.arrival_ratio:.2f}",
            f"{row.scan_ms:.1f}",
            f"{row.scan_ratio:.2f}",
        )
        for row in read_rows(AdmissionRow, directory)
    ]
    return table(head, lines)
