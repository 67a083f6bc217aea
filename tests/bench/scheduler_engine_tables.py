"""What the real engines gave, as Markdown."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TypeVar

from scheduler_markdown import section, spread, table
from scheduler_musts import STOCK, ratios_to_stock
from scheduler_rows import EnginePoissonRow, EngineRow, OneEngineRow, OutputsRow, read_rows

AnyRow = TypeVar("AnyRow", EngineRow, OneEngineRow)
ONE_ENGINE_NOTE = """\
Six contexts of 1600 tokens with six questions of 30 tokens each and replies of 8 tokens, shuffled,
all waiting at once. The arms take turns on one engine process, whose scheduler is exchanged and
whose cache is emptied between batches: servers started alike may differ in speed for as long as
they run. Computed prompt tokens are counted by the step, in brackets as a multiple of the fewest
that any order computes. Times are medians with the range in brackets; ratios are to stock
in the same repeat. The last column is the median share of the machine that other programs took.
The order of the first four cases is one in which first come, first served computes about as much
again as in the measurements that the goals were taken from; at 80 blocks that is more than in any
of the ten drawn for the scheduler object below. With `any order` each repeat draws its own."""
BATCHES_NOTE = """\
The same batch through HTTP, each arm on a server of its own, on 20 blocks of 128 tokens unless the
row says otherwise. Requests are sent at once, reach the engine one after the other, and the first
are admitted before the last are there. Caches are emptied before each batch and the arms take
turns; a server that happens to be slow is in its row all the same, see above. Tokens are by the
engine's own counters, times from the first send to the last reply; the last column is the most of
the machine that other programs took during a batch.
Sent at once to an empty LMCache, most requests are looked up there before their context is stored;
with contexts in it, fewer tokens than the bound of an empty one need be computed."""
POISSON_NOTE = """\
16 contexts of 1600 tokens on 80 blocks, the same arrivals once for each order; capacity is the rate
at which stock works off a full queue. One run each, so a report and no proof."""
OUTPUTS_NOTE = """\
Greedy replies to the same prompts, compared with those of a first shuffled batch on stock vLLM.
What shares a step and what comes from the cache changes the order in which numbers are added up
and so, now and then, the likeliest token; a client that sorts its batch sees the same. The demo
model has random weights and thus many near ties: it shows more of this than a trained model."""


def engine_tables(directory: Path) -> list[str]:
    """A section for each kind of row there is."""
    one_engine = one_engine_table(read_rows(OneEngineRow, directory))
    batches = batches_table(read_rows(EngineRow, directory))
    poisson = _poisson_table(read_rows(EnginePoissonRow, directory))
    outputs = _outputs_table(read_rows(OutputsRow, directory))
    return [
        section("Batches on one real engine", ONE_ENGINE_NOTE, one_engine),
        section("Batches through real servers", BATCHES_NOTE, batches),
        section("Poisson arrivals on the real engine", POISSON_NOTE, poisson),
        section("Outputs", OUTPUTS_NOTE, outputs),
    ]


def one_engine_table(rows: Sequence[OneEngineRow]) -> str:
    """A line for each case and arm, stock first."""
    head = (
        "batch",
        "order",
        "repeats",
        "computed tokens",
        "steps",
        "total, s",
        "x stock",
        "others",
    )
    lines = []
    for case, of_case in groupby(rows, key=lambda row: row.case):
        for arm, of_arm, ratios in _by_arm(list(of_case)):
            computed = median(row.computed_tokens for row in of_arm)
            cells = (
                str(len(of_arm)),
                f"{computed:,.0f} ({computed / of_arm[0].bound_tokens:.2f})",
                f"{median(row.steps for row in of_arm):.0f}",
                spread([row.total_s for row in of_arm]),
                spread(ratios),
                f"{median(row.others_cpu for row in of_arm):.0%}",
            )
            lines.append((case, arm, *cells))
    return table(head, lines)


def batches_table(rows: Sequence[EngineRow]) -> str:
    """A line for each case and arm, stock first."""
    head = (
        "batch",
        "order",
        "repeats",
        "computed tokens",
        "from LMCache",
        "total, s",
        "x stock",
        "TTFT p50, s",
        "TTFT p95, s",
        "others",
    )
    lines = []
    for case, of_case in groupby(rows, key=lambda row: row.case):
        for arm, of_arm, ratios in _by_arm(list(of_case)):
            lines.append((case, arm, *_cells(of_arm, ratios)))
    return table(head, lines)


def _by_arm(runs: Sequence[AnyRow]) -> Iterator[tuple[str, list[AnyRow], list[float]]]:
    ratios = ratios_to_stock(runs)
    for arm in sorted({row.arm for row in runs}, key=lambda arm: (arm != STOCK, arm)):
        yield arm, [row for row in runs if row.arm == arm], ratios[arm]


def _cells(runs: Sequence[EngineRow], ratios: Sequence[float]) -> tuple[str, ...]:
    computed = median(run.computed_tokens for run in runs)
    return (
        str(len(runs)),
        f"{computed:,.0f} ({computed / runs[0].bound_tokens:.2f})",
        f"{median(run.external_tokens for run in runs):,.0f}",
        spread([run.total_s for run in runs]),
        spread(ratios),
        f"{median(run.ttft_p50_s for run in runs):.2f}",
        f"{median(run.ttft_p95_s for run in runs):.2f}",
        f"{max(run.others_cpu for run in runs):.0%}",
    )


def _poisson_table(rows: Sequence[EnginePoissonRow]) -> str:
    head = (
        "order",
        "x capacity",
        "requests",
        "mean, s",
        "p99, s",
        "worst, s",
        "computed",
        "others",
    )
    lines = [
        (
            row.arm,
            f"{row.load:g}",
            str(row.requests),
            f"{row.mean_s:.2f}",
            f"{row.p99_s:.2f}",
            f"{row.worst_s:.2f}",
            f"{row.computed_tokens:,}",
            f"{row.others_cpu:.0%}",
        )
        for row in rows
    ]
    return table(head, lines)


def _outputs_table(rows: Sequence[OutputsRow]) -> str:
    head = ("served", "replies", "tokens each", "same throughout", "same first token")
    lines = [
        (row.serving, str(row.replies), str(row.tokens), str(row.same), str(row.same_first))
        for row in rows
    ]
    return table(head, lines)
