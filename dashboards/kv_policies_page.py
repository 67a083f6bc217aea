"""The page about KV cache policies: what each holds, what it keeps of meaning, what it costs."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dashboards.figures.style import (
    SERIES_COLOURS,
    finished,
    new_axes,
    new_figure,
    save_svg,
    series_colour,
)
from dashboards.report.wording import listed
from dashboards.studies.answer import MarkdownTable, written
from dashboards.studies.page import Provenance, page_head
from dashboards.studies.wording import duration, percent, times
from kv_policies.rows import PolicyRow, RepeatSpread

PAGE, CSV = "policies.md", "policies.csv"
FRONTIER, COSTS = "policies-frontier.svg", "policies-time.svg"
FULL = "full"
HALF, QUARTER = 0.55, 0.30
"""Half and a quarter of the bytes, with what a policy needs beside."""
KEPT = 1.05
"""Up to so many times the full cache's perplexity, meaning is kept, if facts are found as well."""
FEWEST_REPEATS, APART = 3, 0.1
"""For a word on times, which differ by chance."""
CODED = re.compile(r"(int|hqq)\d")
"""Families whose numbers are first tokens and recent ones."""
MARKERS = "os^DvP*X"


def write_policies_page(
    rows: Sequence[PolicyRow], note: str, measured: Provenance, folder: Path
) -> Path:
    """Write page and pictures into a folder that is there; returns the page."""
    save_svg(frontier(rows), folder / FRONTIER)
    save_svg(times_taken(rows), folder / COSTS)
    return written(folder / PAGE, _blocks(rows, note, measured))


def _blocks(rows: Sequence[PolicyRow], note: str, measured: Provenance) -> Iterator[str]:
    head = page_head(
        "KV cache policies: meaning, memory and time",
        "What a cache may drop or round of the keys and values it holds, and what a model can"
        " still do then.",
        measured,
        needs="",
    )
    yield f"{head} All figures are in [{CSV}]({CSV})."
    if note:
        yield f"**{note}**"
    yield "## In short"
    yield "\n".join(f"- {each}" for each in findings(rows)) or "Nothing can be set against another."
    yield f"![Perplexity and recall of each policy against the bytes it holds]({FRONTIER})"
    yield _table(rows).markdown
    yield f"![Time to the first token and for each later one, by policy]({COSTS})"
    yield (
        "Each figure is a mean over texts that all policies read, of perplexity the geometric one,"
        " recall is the share of made-up facts that are said again, with an interval of 95 %."
        " Perplexity and KL are of tokens read one at a time after the prompt. The sentences above"
        " are made from the figures by rules."
    )


def findings(rows: Sequence[PolicyRow]) -> Iterator[str]:
    """What there is to say of these rows; nothing of what was not measured."""
    known = {row.policy: row for row in rows}
    full = known.get(FULL)
    if full is not None and full.perplexity_decode is not None:
        others = [row for row in rows if row is not full and row.perplexity_decode is not None]
        yield from _kept(HALF, others, full)
        yield from _kept(QUARTER, others, full)
        yield from _broken(others, full)
        yield from _averaged(others, full)
    yield from _sink(rows)
    yield from _first_and_recent(rows)
    yield from _outliers(rows)
    if full is not None:
        yield from _time_costs(rows, full)


def _kept(most: float, rows: Sequence[PolicyRow], full: PolicyRow) -> Iterator[str]:
    able = [row for row in rows if row.kv_share is not None and round(row.kv_share.mean, 2) <= most]
    if not able:
        return
    kept = [f"`{row.policy}`" for row in able if keeps_meaning(row, full)]
    names = listed(kept) if kept else "none"
    yield (
        f"At {percent(most)} of the bytes or less, {names} of {len(able)} policies measured"
        f" {'keep' if len(kept) > 1 else 'keeps'} perplexity within {percent(KEPT - 1)} of the full"
        " cache's, with no evidence of fewer facts found."
    )


def keeps_meaning(row: PolicyRow, full: PolicyRow) -> bool:
    """By perplexity, and by recall whose interval reaches what the full cache has."""
    assert row.perplexity_decode is not None
    assert full.perplexity_decode is not None
    if row.perplexity_decode.mean > KEPT * full.perplexity_decode.mean:
        return False
    if row.recall is None or full.recall is None:
        return True
    return row.recall.high >= full.recall.mean


def _broken(rows: Sequence[PolicyRow], full: PolicyRow) -> Iterator[str]:
    worst = sorted(rows, key=lambda row: -_perplexity(row))[:3]
    said = [
        f"`{row.policy}` ({times(_perplexity(row) / _perplexity(full))}, {_recall(row)})"
        for row in worst
        if not keeps_meaning(row, full)
    ]
    if said:
        yield (
            f"Most is lost by {listed(said)}: perplexity is so many times the full cache's,"
            f" which has {_recall(full)}."
        )


def _averaged(rows: Sequence[PolicyRow], full: PolicyRow) -> Iterator[str]:
    for row in rows:
        if row.policy.startswith("mean-heads:"):
            works = "works" if keeps_meaning(row, full) else "does not work"
            yield (
                f"Averaging heads without training {works}: `{row.policy}` has"
                f" {times(_perplexity(row) / _perplexity(full))} the full cache's perplexity. What"
                " a tenth of the training mends, `kvswarm policies train-gqa` measures."
            )


def _sink(rows: Sequence[PolicyRow]) -> Iterator[str]:
    """`window:N` against `sink-window:S+W` of the same tokens."""
    alone_of = {row.policy: row for row in rows}
    for row in rows:
        if not row.policy.startswith("sink-window:"):
            continue
        sinks, window = (int(each) for each in row.policy.split(":")[1].split("+"))
        alone = alone_of.get(f"window:{sinks + window}") if sinks else None
        if alone is None or alone.perplexity_decode is None:
            continue
        worth = _perplexity(alone) / _perplexity(row)
        if worth <= 1:
            yield f"`{alone.policy}` loses nothing without the first tokens of `{row.policy}`."
        else:
            yield (
                f"The first {sinks} tokens are worth {times(worth)}: so much higher is the"
                f" perplexity of `{alone.policy}` than that of `{row.policy}`, which holds as many"
                " tokens."
            )


def _first_and_recent(rows: Sequence[PolicyRow]) -> Iterator[str]:
    """`NAME:0+0` against the same with first and recent tokens kept in full."""
    for row in rows:
        family, _, numbers = row.policy.partition(":")
        whole = re.compile(rf"{re.escape(family)}:[1-9]\d*\+[1-9]\d*")
        fuller = [each for each in rows if whole.fullmatch(each.policy)]
        if not CODED.match(family) or numbers != "0+0" or not fuller or row.kl_nats is None:
            continue
        other = fuller[0]
        assert other.kl_nats is not None
        yield (
            f"Without first and recent tokens in full, `{family}` has a KL of"
            f" {row.kl_nats.mean:.3g} nats a token, with them (`{other.policy}`) of"
            f" {other.kl_nats.mean:.3g}."
        )


def _outliers(rows: Sequence[PolicyRow]) -> Iterator[str]:
    """`intN-token` against `intN-mixed` of the same parameters."""
    known = {row.policy: row for row in rows}
    for row in rows:
        other = known.get(row.policy.replace("-token:", "-mixed:"))
        if other is None or other is row or row.kl_nats is None or not other.kl_nats:
            continue
        if row.kl_nats.mean > other.kl_nats.mean > 0:
            yield (
                f"Outlier channels of keys cost {times(row.kl_nats.mean / other.kl_nats.mean)}: so"
                f" much higher is the KL of `{row.policy}`, with a scale for each token, than of"
                f" `{other.policy}`, whose keys have a scale for each channel."
            )


def _time_costs(rows: Sequence[PolicyRow], full: PolicyRow) -> Iterator[str]:
    """Against the full cache, of policies whose range over repeats does not meet its own and whose
    mean is `APART` off: with three repeats ranges part by chance once in ten."""
    for name, what, write in (
        ("decode_ms_per_token", "A decoded token", _milliseconds),
        ("ttft_ms", "The first token", duration),
    ):
        own: RepeatSpread | None = getattr(full, name)
        known = {row.policy: getattr(row, name) for row in rows if row is not full}
        others = {policy: value for policy, value in known.items() if value is not None}
        if own is None or not others or full.repeats < FEWEST_REPEATS:
            continue
        ratios = {policy: value.mean / own.mean for policy, value in others.items()}
        longer = [n for n, it in others.items() if it.low > own.high and ratios[n] > 1 + APART]
        less = [n for n, it in others.items() if it.high < own.low and ratios[n] < 1 - APART]
        said = [f"{what} takes {write(own.mean)} with the full cache"]
        for apart, those in (("longer", longer), ("less", less)):
            if those:
                with_these = listed([f"`{each}` ({times(ratios[each])})" for each in those])
                said.append(f"{apart} with {with_these}")
        rest = len(others) - len(longer) - len(less)
        said.append(f"{rest} of {len(others)} other policies are not told apart from it by a tenth")
        yield "; ".join(said) + "."


def _perplexity(row: PolicyRow) -> float:
    assert row.perplexity_decode is not None
    return row.perplexity_decode.mean


def _recall(row: PolicyRow) -> str:
    return "recall not measured" if row.recall is None else f"recall {percent(row.recall.mean)}"


def _tiers(rows: Sequence[PolicyRow]) -> Iterator[tuple[str, str, Callable[[float], str]]]:
    """Columns of what is behind the fast tier of a policy."""
    for place, held, moved, miss in (
        ("slow tier", "slow_kv_bytes", "moved_bytes_per_token", "miss_ms"),
        ("file", "disk_kv_bytes", "disk_bytes_per_token", "disk_miss_ms"),
    ):
        if any((found := getattr(row, held)) is not None and found.high for row in rows):
            yield place, held, _megabytes
            yield f"{place}, fetched a token", moved, _megabytes
            yield f"{place}, time of a block", miss, _milliseconds


def _table(rows: Sequence[PolicyRow]) -> MarkdownTable:
    columns = (
        ("bytes", "kv_share", percent),
        ("KV", "kv_bytes", _megabytes),
        ("peak memory", "peak_memory_bytes", _megabytes),
        ("perplexity, prefill", "perplexity_prefill", _number),
        ("perplexity, decode", "perplexity_decode", _number),
        ("KL, nats", "kl_nats", _number),
        ("same token", "top1_agreement", percent),
        ("recall", "recall", percent),
        ("TTFT", "ttft_ms", duration),
        ("prefill a token", "prefill_ms_per_token", _milliseconds),
        ("decode a token", "decode_ms_per_token", _milliseconds),
        *_tiers(rows),
    )
    return MarkdownTable(
        ("policy", *(title for title, _, _ in columns)),
        tuple(
            (f"`{row.policy}`", *(_span(getattr(row, name), write) for _, name, write in columns))
            for row in rows
        ),
    )


def _megabytes(size_bytes: float) -> str:
    """Three digits that count: policies differ by less than a MB."""
    return f"{size_bytes / 1e6:,.3g} MB" if size_bytes < 1e9 else f"{size_bytes / 1e6:,.0f} MB"


def _milliseconds(time_ms: float) -> str:
    """Of one token, which may take a thousandth of one."""
    return f"{time_ms:.3g} ms" if time_ms >= 1 else f"{1000 * time_ms:.3g} µs"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1e5 else f"{value:.1e}"


def _span(spread: RepeatSpread | None, write: Any) -> str:
    if spread is None:
        return ""
    low, middle, high = write(spread.low), write(spread.mean), write(spread.high)
    return middle if low == high else f"{middle} ({low} to {high})"


def frontier(rows: Sequence[PolicyRow]) -> Figure:
    """Perplexity, or KL where the model has no meaning, and recall against the share of bytes."""
    has_meaning = any(row.perplexity_decode is not None for row in rows)
    kl = ("kl_nats", "KL, nats a token")
    panels = [("perplexity_decode", "perplexity") if has_meaning else kl]
    if any(row.recall is not None for row in rows):
        panels.append(("recall", "facts found, %"))
    figure = new_figure(10.0, 5.2)
    for place, (name, title) in enumerate(panels, 1):
        axes = new_axes(figure, title, "KV bytes, % of the full cache", "", (1, len(panels), place))
        for at, row in enumerate(rows):
            value, share = getattr(row, name), row.kv_share
            if value is not None and share is not None:
                scale = 100 if name == "recall" else 1
                ends = _reach(value, scale)
                axes.errorbar(
                    100 * share.mean, scale * value.mean, yerr=ends, label=row.policy, **_dress(at)
                )
        if name == "perplexity_decode" and axes.has_data():
            axes.set_yscale("log")
    return finished(figure)


def times_taken(rows: Sequence[PolicyRow]) -> Figure:
    """Time to first token and of a decode step, a mark for each policy with its range."""
    figure = new_figure(10.0, 1.0 + 0.28 * len(rows))
    for place, (name, title) in enumerate(
        (("ttft_ms", "TTFT, ms"), ("decode_ms_per_token", "decode, ms a token")), 1
    ):
        axes = new_axes(figure, title, "", "", (1, 2, place))
        for at, row in enumerate(rows):
            if (value := getattr(row, name)) is not None:
                axes.errorbar(value.mean, at, xerr=_reach(value), **_dress(0))
        axes.set_yticks(range(len(rows)), [row.policy for row in rows] if place == 1 else [])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
    return figure


def _reach(value: RepeatSpread, scale: float = 1) -> list[list[float]]:
    """Never below nothing, which a mean of equal values may be off by."""
    below, above = value.mean - value.low, value.high - value.mean
    return [[scale * max(0.0, below)], [scale * max(0.0, above)]]


def _dress(at: int) -> dict[str, Any]:
    marker = MARKERS[at // len(SERIES_COLOURS) % len(MARKERS)]
    return {"color": series_colour(at), "marker": marker, "capsize": 3, "linestyle": "none"}
