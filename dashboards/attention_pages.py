"""Pages about what attention costs: three ways to compute it, and fewer KV heads by training."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from dashboards.figures.style import (
    finished,
    marked_line,
    new_axes,
    new_figure,
    save_svg,
    series_colour,
)
from dashboards.studies.answer import MarkdownTable, in_short, written
from dashboards.studies.page import Provenance, page_head
from dashboards.studies.wording import megabytes, percent, times
from kv_policies.exact_attention import AttentionRow
from kv_policies.gqa_training import GqaResult

ATTENTION_PAGE, ATTENTION_SVG = "attention.md", "attention.svg"
GQA_PAGE, GQA_SVG = "train-gqa.md", "train-gqa.svg"
NAIVE, FUSED = "naive", "fused"
MULTI_HEAD, AVERAGED, TRAINED_ON = "multi-head", " averaged", " averaged, then trained"


def write_attention_page(
    rows: Sequence[AttentionRow],
    paged: Mapping[int, tuple[int, int]],
    made: Provenance,
    folder: Path,
) -> Path:
    """`paged` has by block size the tokens reserved in one piece and in blocks."""
    save_svg(_curves(rows), folder / ATTENTION_SVG)
    blocks = [
        page_head(
            "Attention three ways: time, memory, bytes moved",
            "One layer's causal attention: with all weights at once, in blocks with a running"
            " softmax, and by torch's fused kernel.",
            made,
        ),
        in_short(attention_findings(rows, paged)),
        f"![Time and memory of each against the length of the sequence]({ATTENTION_SVG})",
        _attention_table(rows).markdown,
        "Bytes moved are derived, as if fast memory held one tile; memory is the high-water mark"
        " beside queries, keys and values, times are medians. The error is the largest difference"
        " to float32, over the largest output.",
    ]
    return written(folder / ATTENTION_PAGE, blocks)


def attention_findings(
    rows: Sequence[AttentionRow], paged: Mapping[int, tuple[int, int]]
) -> Iterator[str]:
    """Of the longest sequence, and of the blocks."""
    longest = max(row.tokens for row in rows)
    at = {row.kernel: row for row in rows if row.tokens == longest}
    naive, fused = at[NAIVE], at[FUSED]
    memory = ""
    if naive.peak_bytes and fused.peak_bytes:
        memory = f" and takes {times(naive.peak_bytes / fused.peak_bytes)} the memory"
    yield (
        f"At {longest:,} tokens naive attention takes {times(naive.ms / fused.ms)} the time of the"
        f" fused kernel{memory}; it moves {times(naive.moved_bytes / fused.moved_bytes)} the bytes."
    )
    yield (
        "All three give the same output, but for rounding: the largest difference is"
        f" {max(row.error for row in rows):.1e} of the largest value."
    )
    for block, (whole, blocks) in paged.items():
        yield (
            f"In blocks of {block} tokens the prompts of the corpus take {percent(blocks / whole)}"
            " of what one piece of the model's longest sequence for each would reserve."
        )


def _attention_table(rows: Sequence[AttentionRow]) -> MarkdownTable:
    return MarkdownTable(
        ("tokens", "kernel", "time", "memory", "bytes moved", "error"),
        tuple(
            (
                f"{row.tokens:,}",
                row.kernel,
                f"{row.ms:.3g} ms",
                megabytes(row.peak_bytes),
                megabytes(row.moved_bytes),
                f"{row.error:.1e}",
            )
            for row in rows
        ),
    )


def _curves(rows: Sequence[AttentionRow]) -> Figure:
    figure = new_figure(10.0, 4.6)
    for place, title in enumerate(("time, ms", "memory, MB"), 1):
        axes = new_axes(figure, title, "tokens", "", (1, 2, place))
        for at, kernel in enumerate(dict.fromkeys(row.kernel for row in rows)):
            own = [row for row in rows if row.kernel == kernel]
            times_ms = [(row.tokens, row.ms) for row in own]
            memory_mb = [(row.tokens, row.peak_bytes / 1e6) for row in own if row.peak_bytes]
            marked_line(axes, times_ms if place == 1 else memory_mb, at, kernel)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    return finished(figure)


def write_gqa_page(results: Sequence[GqaResult], made: Provenance, folder: Path) -> Path:
    """Of all variants and seeds."""
    save_svg(_losses(results), folder / GQA_SVG)
    blocks = [
        page_head(
            "Fewer KV heads, trained or averaged",
            "One small model over bytes, trained with all KV heads, with groups and with one, from"
            " the same seeds on the same text.",
            made,
        ),
        in_short(gqa_findings(results)),
        f"![Loss on held-out text against training steps, of each variant]({GQA_SVG})",
        _gqa_table(results).markdown,
        "Losses are nats a byte on text that nothing was trained on, means over the seeds with"
        " their range. `averaged` takes the multi-head model and averages the key and value"
        " projections of each group; `then trained` goes on for a tenth of the steps. Texts at"
        " equal memory are how many fit where one fits with all heads. A decode step gives each"
        " text of a batch a token.",
    ]
    return written(folder / GQA_PAGE, blocks)


def gqa_findings(results: Sequence[GqaResult]) -> Iterator[str]:
    """What fewer heads cost, what averaging costs, what training on mends."""
    loss = {name: fmean(each.loss_nats for each in own) for name, own in _by_variant(results)}
    bytes_of = {name: own[0].kv_bytes_per_token for name, own in _by_variant(results)}
    full, full_bytes = loss[MULTI_HEAD], bytes_of[MULTI_HEAD]
    for name in loss:
        if name == MULTI_HEAD or AVERAGED in name:
            continue
        yield (
            f"Trained with {name}, the cache takes {percent(bytes_of[name] / full_bytes)} of the"
            f" bytes, and the loss is {loss[name] - full:+.3f} nats a byte off"
            f" ({full:.3f} with all heads)."
        )
        averaged, mended = loss[name + AVERAGED], loss[name + TRAINED_ON]
        yield f"Averaged to {name}{_averaging(averaged - full, mended - full)}."


def _averaging(averaged: float, mended: float) -> str:
    """By how many nats it is off, as it comes and trained on."""
    if averaged <= 0:
        return " without training it is not worse"
    share = "all" if mended <= 0 else percent((averaged - mended) / averaged)
    return (
        f" without training it is {averaged:+.3f} off; a tenth of the steps mends {share} of that"
    )


def _by_variant(results: Sequence[GqaResult]) -> Iterator[tuple[str, list[GqaResult]]]:
    for name in dict.fromkeys(each.variant for each in results):
        yield name, [each for each in results if each.variant == name]


def _gqa_table(results: Sequence[GqaResult]) -> MarkdownTable:
    full_bytes = next(e.kv_bytes_per_token for e in results if e.variant == MULTI_HEAD)
    rows = []
    for name, own in _by_variant(results):
        losses = [each.loss_nats for each in own]
        held = own[0].kv_bytes_per_token
        rows.append(
            (
                name,
                f"{len(own)}",
                f"{held:,}",
                f"{full_bytes / held:.0f}",
                f"{fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})",
                f"{fmean(each.decode_ms_per_token for each in own):.3g} ms",
                f"{fmean(each.train_s for each in own):.0f} s",
            )
        )
    titles = ("variant", "seeds", "KV bytes a token", "texts at equal memory", "held-out loss")
    return MarkdownTable((*titles, "decode step", "training"), tuple(rows))


def _losses(results: Sequence[GqaResult]) -> Figure:
    figure = new_figure(10.0, 4.6)
    axes = new_axes(figure, "loss on held-out text, nats a byte", "steps", "", (1, 1, 1))
    trained = [(name, own) for name, own in _by_variant(results) if AVERAGED not in name]
    for at, (name, own) in enumerate(trained):
        steps = [step for step, _ in own[0].curve][1:]
        curves = ([nats for _, nats in each.curve][1:] for each in own)
        losses = [*zip(*curves, strict=True)]
        axes.plot(steps, [*map(fmean, losses)], color=series_colour(at), label=name)
        low, high = [*map(min, losses)], [*map(max, losses)]
        axes.fill_between(steps, low, high, color=series_colour(at), alpha=0.2)
    return finished(figure)
