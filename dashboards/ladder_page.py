"""The page of `kvswarm ladder`: what a cache, a batch and blocks buy, each with a sentence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dashboards.figures.style import finished, marked_line, new_axes, new_figure, save_svg
from dashboards.report.wording import listed
from dashboards.studies.answer import MarkdownTable, write_rows, written
from dashboards.studies.page import Provenance, page_head
from dashboards.studies.wording import count, duration, megabytes, memory, percent, times
from kv_policies.decode_profile import KernelRow
from kv_policies.generation import BatchRow, GenerationRow
from kv_policies.kv_allocation import AllocationRow, CapacityRow

PAGE, CSV, SVG = "ladder.md", "ladder.csv", "ladder.svg"
CACHED = {True: "cache", False: "no cache"}
SHOWN_KERNELS = 5
"""Of a step; the CSV has all."""
COLUMNS = (
    *("table", "way", "prompt_tokens", "generated_tokens", "tokens", "batch", "block_tokens"),
    *("kernel", "rows", "figure", "value"),
)
SETTINGS = frozenset(COLUMNS) - {"table", "figure", "value"}


@dataclass(frozen=True, slots=True)
class Ladder:
    """Everything that was measured; texts longer than `piece_tokens` cannot come, and KV may take
    `budget_bytes`."""

    generation: Sequence[GenerationRow]
    batches: Sequence[BatchRow]
    allocation: Sequence[AllocationRow]
    capacity: Sequence[CapacityRow]
    kernels: Sequence[KernelRow]
    piece_tokens: int
    budget_bytes: int


def write_ladder_page(ladder: Ladder, made: Provenance, folder: Path) -> Path:
    """Page, picture and CSV into a folder that is there."""
    write_rows(folder / CSV, COLUMNS, long_rows(ladder))
    save_svg(_picture(ladder), folder / SVG)
    return written(folder / PAGE, _blocks(ladder, made))


def ladder_findings(ladder: Ladder) -> dict[str, str]:
    """A sentence for each table."""
    return {
        "Cache or no cache": _of_generation(ladder.generation),
        "Static batches": _of_batches(ladder.batches),
        "Memory: one piece, growing tensors, blocks": _of_allocation(ladder),
        "Which kernel a step spends its time in": _of_kernels(ladder.kernels),
    }


def long_rows(ladder: Ladder) -> Iterator[dict[str, Any]]:
    """For the CSV: a figure a line, with the settings it was measured under."""
    for table, rows in (
        ("generation", ladder.generation),
        ("batches", ladder.batches),
        ("allocation", ladder.allocation),
        ("capacity", ladder.capacity),
        ("kernels", ladder.kernels),
    ):
        for row in rows:
            told = {name: getattr(row, name) for name in row.__dataclass_fields__}
            if "has_cache" in told:
                told["way"] = CACHED[told.pop("has_cache")]
            if table == "capacity":
                told["most_texts"] = told.pop("batch")
            settings = {name: told[name] for name in told if name in SETTINGS}
            for figure in (name for name in told if name not in SETTINGS):
                yield {"table": table, **settings, "figure": figure, "value": told[figure]}


def _blocks(ladder: Ladder, made: Provenance) -> Iterator[str]:
    yield page_head(
        "The ladder: a cache, a batch, blocks",
        "What each idea of an engine buys, measured in one process with transformers' generate()."
        f" All figures are in [{CSV}]({CSV}).",
        made,
    )
    yield f"![Time against length, tokens a second and memory against the batch]({SVG})"
    tables = {
        "Cache or no cache": [_generation_table(ladder.generation)],
        "Static batches": [_batch_table(ladder.batches)],
        "Memory: one piece, growing tensors, blocks": [
            _allocation_table(ladder.allocation),
            _capacity_table(ladder.capacity),
        ],
        "Which kernel a step spends its time in": [_kernel_table(ladder.kernels)],
    }
    for title, said in ladder_findings(ladder).items():
        yield f"## {title}\n\n**{said}**"
        for table in tables[title]:
            yield table.markdown
            yield f"On {made.machine}."
    yield (
        "One generation of the longest length tells of the shorter ones; a step is the median of"
        " the last eight. Memory of a call is the high-water mark beside the model. One piece is as"
        f" long as the longest text that may come, {count(ladder.piece_tokens)} tokens; growing"
        " tensors pad a batch to its longest text and are copied as they grow. Nothing stands where"
        f" the budget of {memory(ladder.budget_bytes)} was used up. Operations a byte are derived"
        " from the sizes of the matrices."
    )


def _of_generation(rows: Sequence[GenerationRow]) -> str:
    at = {(row.has_cache, row.prompt_tokens, row.generated_tokens): row for row in rows}
    pairs = sorted((row.prompt_tokens, row.generated_tokens) for row in rows if row.has_cache)

    def ratio(pair: tuple[int, int]) -> float:
        return at[False, *pair].seconds / at[True, *pair].seconds

    longest = max(pairs, key=lambda pair: (pair[1], -pair[0]))
    wordiest = max(pairs, key=lambda pair: (pair[0], -pair[1]))
    told = [
        f"{count(generated)} tokens after a prompt of {count(prompt)} take"
        f" {times(ratio((prompt, generated)))} as long"
        for prompt, generated in dict.fromkeys((pairs[0], longest, wordiest))
    ]
    return f"Without a cache {listed(told)}."


def _of_batches(rows: Sequence[BatchRow]) -> str:
    first, best = rows[0], max(rows, key=lambda row: row.tokens_per_s)
    last = rows[-1]
    return (
        f"A batch of {best.batch} makes {times(best.tokens_per_s / first.tokens_per_s)} the tokens"
        f" a second of a batch of {first.batch}, the most of all; a step of a batch of {last.batch}"
        f" takes {times(last.step_ms / first.step_ms)} as long, and its KV is"
        f" {memory(last.kv_bytes)}."
    )


def _of_allocation(ladder: Ladder) -> str:
    at = {(row.way, row.block_tokens): row for row in ladder.capacity}
    blocks = min(row.block_tokens for row in ladder.capacity if row.block_tokens)
    paged = at["blocks", blocks]
    crossover = (
        f"from a batch of {paged.crossover} on blocks hold less than growing tensors"
        if paged.crossover
        else "blocks never hold less than growing tensors here"
    )
    return (
        f"Of a budget of {memory(ladder.budget_bytes)}, one piece for each text holds a batch of"
        f" {at['one piece', 0].batch}, growing tensors {at['growing', 0].batch}, blocks of {blocks}"
        f" tokens {paged.batch}; {crossover}."
    )


def _of_kernels(rows: Sequence[KernelRow]) -> str:
    without, cached = (next(row for row in rows if row.has_cache is has) for has in (False, True))
    return (
        f"At {count(cached.tokens)} tokens a step without a cache spends"
        f" {percent(without.share)} of its time in {_named(without)}; with a cache it spends"
        f" {percent(cached.share)} in {_named(cached)}, and all of it is"
        f" {times(_total_ms(rows, False) / _total_ms(rows, True))} faster."
    )


def _two_digits(value: float) -> str:
    """110 and not 1.1e+02."""
    return f"{float(f'{value:.2g}'):,g}"


def _named(row: KernelRow) -> str:
    if row.rows is None or row.flops_per_byte is None:
        return f"`{row.kernel}`"
    shape = "vectors (one row)" if row.rows == 1 else f"matrices of {count(row.rows)} rows"
    return f"`{row.kernel}` over {shape}, {_two_digits(row.flops_per_byte)} operations a byte"


def _total_ms(rows: Iterable[KernelRow], has_cache: bool) -> float:
    return sum(row.ms for row in rows if row.has_cache is has_cache)


def _generation_table(rows: Sequence[GenerationRow]) -> MarkdownTable:
    return MarkdownTable(
        ("way", "prompt", "generated", "time", "last steps", "KV held"),
        tuple(
            (
                CACHED[row.has_cache],
                count(row.prompt_tokens),
                count(row.generated_tokens),
                duration(1000 * row.seconds),
                duration(row.step_ms),
                megabytes(row.kv_bytes if row.has_cache else None),
            )
            for row in rows
        ),
    )


def _batch_table(rows: Sequence[BatchRow]) -> MarkdownTable:
    return MarkdownTable(
        ("batch", "tokens/s", "step", "KV held", "memory of the call"),
        tuple(
            (
                f"{row.batch}",
                f"{row.tokens_per_s:,.3g}",
                duration(row.step_ms),
                megabytes(row.kv_bytes),
                megabytes(row.peak_bytes),
            )
            for row in rows
        ),
    )


def _way(row: AllocationRow | CapacityRow) -> str:
    return f"blocks of {row.block_tokens}" if row.block_tokens else row.way


def _allocation_table(rows: Sequence[AllocationRow]) -> MarkdownTable:
    batches = list(dict.fromkeys(row.batch for row in rows))
    peaks: Mapping[tuple[str, int], int | None] = {
        (_way(row), row.batch): row.peak_bytes for row in rows
    }
    used = {row.batch: row.used_bytes for row in rows}
    ways = dict.fromkeys(_way(row) for row in rows)
    return MarkdownTable(
        ("memory of a batch of", *(f"{batch}" for batch in batches)),
        (
            ("tokens themselves", *(megabytes(used[batch]) for batch in batches)),
            *((way, *(megabytes(peaks[way, batch]) for batch in batches)) for way in ways),
        ),
    )


def _capacity_table(rows: Sequence[CapacityRow]) -> MarkdownTable:
    return MarkdownTable(
        ("way", "largest batch", "holds less than growing tensors from"),
        tuple((_way(row), count(row.batch), f"{row.crossover or ''}") for row in rows),
    )


def _kernel_table(rows: Sequence[KernelRow]) -> MarkdownTable:
    shown = [
        row
        for has_cache in (False, True)
        for row in [each for each in rows if each.has_cache is has_cache][:SHOWN_KERNELS]
    ]
    return MarkdownTable(
        ("way", "kernel", "rows", "time", "share", "operations a byte"),
        tuple(
            (
                CACHED[row.has_cache],
                f"`{row.kernel}`",
                "" if row.rows is None else count(row.rows),
                duration(row.ms),
                percent(row.share),
                "" if row.flops_per_byte is None else _two_digits(row.flops_per_byte),
            )
            for row in shown
        ),
    )


def _picture(ladder: Ladder) -> Figure:
    figure = new_figure(11.0, 4.2)
    _draw_generation(new_axes(figure, "time, s", "generated tokens", "", (1, 3, 1)), ladder)
    _draw_batches(new_axes(figure, "tokens/s", "batch", "", (1, 3, 2)), ladder)
    _draw_memory(new_axes(figure, "memory, MB", "batch", "", (1, 3, 3)), ladder)
    return finished(figure)


def _draw_generation(axes: Axes, ladder: Ladder) -> None:
    prompt = min(row.prompt_tokens for row in ladder.generation)
    for at, has_cache in enumerate((False, True)):
        points = [
            (row.generated_tokens, row.seconds)
            for row in ladder.generation
            if row.has_cache is has_cache and row.prompt_tokens == prompt
        ]
        marked_line(axes, points, at, CACHED[has_cache])
    axes.set_yscale("log")


def _draw_batches(axes: Axes, ladder: Ladder) -> None:
    marked_line(axes, [(row.batch, row.tokens_per_s) for row in ladder.batches], 1)
    axes.set_xscale("log", base=2)


def _draw_memory(axes: Axes, ladder: Ladder) -> None:
    for at, way in enumerate(dict.fromkeys(map(_way, ladder.allocation)), 2):
        own = [
            (row.batch, row.peak_bytes / 1e6)
            for row in ladder.allocation
            if _way(row) == way and row.peak_bytes is not None
        ]
        marked_line(axes, own, at, way)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
