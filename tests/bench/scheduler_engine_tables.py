"""What the real engines gave, as Markdown."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

from scheduler_markdown import section, spread, table
from scheduler_musts import STOCK, ratios_to_stock
from scheduler_rows import EnginePoissonRow, EngineRow, OutputsRow, read_rows

BATCHES_NOTE = """\
Six contexts of 1600 tokens with six questions of 30 tokens each and replies of 8 tokens, shuffled
and sent at once, on 20 blocks of 128 tokens, unless the row says otherwise. Caches are emptied
before each batch and the arms take turns. Computed prompt tokens are by the engine's own counters,
in brackets as a multiple of the fewest that any order computes. Times are medians with the range
in brackets, from the first send to the last reply; ratios are to stock in the same repeat. The last
column is the most of the machine that other programs took during a batch.
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
    batches = batches_table(read_rows(EngineRow, directory))
    poisson = _poisson_table(read_rows(EnginePoissonRow, directory))
    outputs = _outputs_table(read_rows(OutputsRow, directory))
    return [
        section("Batches on the real engine", BATCHES_NOTE, batches),
        section("Poisson arrivals on the real engine", POISSON_NOTE, poisson),
        section("Outputs", OUTPUTS_NOTE, outputs),
    ]


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
        runs = list(of_case)
        ratios = ratios_to_stock(runs)
        for arm in sorted({row.arm for row in runs}, key=lambda arm: (arm != STOCK, arm)):
            of_arm = [row for row in runs if row.arm == arm]
            lines.append((case, arm, *_cells(of_arm, ratios[arm])))
    return table(head, lines)


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
