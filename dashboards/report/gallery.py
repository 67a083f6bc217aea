"""The pictures of a page, each with what it shows in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from dashboards.figures.latency import latency_by_number, latency_cdf, latency_over_time
from dashboards.figures.line_fit import LineFit
from dashboards.figures.marks import MOST_MARKS
from dashboards.figures.prompt_length import clouds, computed_cloud, prompt_length
from dashboards.figures.rates import cached_share, outcomes, throughput
from dashboards.figures.requests import DrawnRequests
from dashboards.figures.retrieval import RetrievalSeries, labels, retrieval
from dashboards.figures.server import (
    MEMORY,
    Servers,
    ServerSeries,
    hit_rate,
    kv_usage,
    memory,
    tells_hits,
)
from dashboards.figures.style import svg_text
from dashboards.figures.timeline import described, most_rows, timeline
from dashboards.report.run_files import ReportedRun
from dashboards.report.wording import number

Runs = Mapping[str, DrawnRequests]


@dataclass(frozen=True, slots=True)
class Picture:
    """`svg` is markup of ours, ready for the page; `wide` asks for its whole width."""

    name: str
    svg: str
    caption: str
    wide: bool = False


def pictures(runs: Sequence[ReportedRun]) -> list[Picture]:
    """All that can be drawn of the runs."""
    # Matplotlib keeps names that begin with `_` out of legends; a space before it is not seen.
    named = {f" {run.name}" if run.name.startswith("_") else run.name: run for run in runs}
    asked = {name: run.drawn for name, run in named.items() if len(run.drawn)}
    served = {name: run for name, run in asked.items() if len(run.service_order)}
    servers = {name: run.server_series for name, run in named.items()}
    return [
        *_of_service(served),
        *_of_caches(served, servers),
        *_of_servers(servers),
        *_of_labels({name: found_of(named[name]) for name in asked}),
        *_of_outcomes(asked),
    ]


def _of_service(runs: Runs) -> Iterator[Picture]:
    if not runs:
        return
    contexts = next(iter(runs.values())).contexts
    if len(contexts) > 1:
        strips = {name: run.context[run.service_order] for name, run in runs.items()}
        shown = timeline(strips if len(runs) > 1 else {"": next(iter(strips.values()))}, contexts)
        words = "; ".join(
            described(name, order, most_rows(len(runs))) for name, order in strips.items()
        )
        caption = (
            "Read from left to right: each mark is a request, its colour the context, its place"
            " when the first token came. A request that follows one of its own colour can use"
            " what that one left in the cache."
        )
        yield Picture("timeline", svg_text(shown, words, "timeline"), caption, wide=True)
    caption = f"Each request in its context's colour.{_thinning(runs)}"
    yield picture("by-number", latency_by_number(runs), caption, wide=True)
    caption = (
        "Each request by the moment it was sent; lines are p50 and p95 of spans of time,"
        " the p95 of those with 20 or more."
        f"{_thinning(runs)}"
    )
    yield picture("over-time", latency_over_time(runs), caption)
    caption = "How large a share was served within how long; steep is steady."
    yield picture("distribution", latency_cdf(runs), caption)
    if any(map(_differs_in_length, runs.values())):
        caption = (
            "Lines are medians of the slopes between all pairs, dashed where they explain less than"
            " half of the spread; waiting in the queue is part of TTFT."
            f" {' '.join(_fits(runs))}{_thinning(runs)}"
        )
        yield picture("prompt-length", prompt_length(runs), caption, wide=True)
    caption = "Complete replies, in spans of time by their end."
    yield picture("throughput", throughput(runs), caption)


def _differs_in_length(run: DrawnRequests) -> bool:
    whole = computed_cloud(run)
    known = [each.x for each in (*clouds(run), *((whole,) if whole is not None else ()))]
    return any(len(x) and x.max() > 1.05 * x.min() for x in known)


def _thinning(runs: Runs) -> str:
    most = max(len(run.service_order) for run in runs.values())
    return "" if most <= MOST_MARKS else f" Of {most:,} requests {MOST_MARKS:,} are drawn, evenly."


def _fits(runs: Runs) -> Iterator[str]:
    for name, run in runs.items():
        kinds = {"all": "all prompts"}
        found = [
            (kinds.get(each.kind, f"mostly {each.kind} prompts"), each.fit) for each in clouds(run)
        ]
        whole = computed_cloud(run)
        found.append(("computed tokens", whole.fit if whole is not None else None))
        told = [
            f"{kind}: {_slope(fit)}" for kind, fit in found if fit is not None and fit.is_certain
        ]
        words = "; ".join(told) or "no slope that could be told from 0"
        yield f"{name}: {words}." if len(runs) > 1 else f"{words[0].upper()}{words[1:]}."


def _slope(fit: LineFit) -> str:
    slope, low, high = (number(1000 * each) for each in (fit.slope, fit.low, fit.high))
    return f"{slope} ms per 1,000 tokens (95 % interval {low} to {high})"


def _of_caches(runs: Runs, servers: Servers) -> Iterator[Picture]:
    """By the engine's counters; where no host has any, by what replies say of themselves."""
    counted = {
        name: each if each is not None and tells_hits(each) else None
        for name, each in servers.items()
    }
    if any(each is not None for each in counted.values()):
        caption = "Where prompt tokens came from in each span of time, by the engine's counters."
        yield picture("hit-rate", hit_rate(counted), caption)
    elif any(not np.isnan(run.cached_tokens).all() for run in runs.values()):
        caption = "By the replies that ended in each span of time."
        yield picture("hit-rate", cached_share(runs), caption)


def _of_servers(servers: Servers) -> Iterator[Picture]:
    """Runs without them keep their colours: they stand in other pictures."""
    known = [each for each in servers.values() if each is not None]
    if any(_known(each, ("kv_cache_usage",)) for each in known):
        dotted = "; waiting is dotted" if len(servers) > 1 else ""
        caption = f"Share of the KV cache in use, and requests running and waiting{dotted}."
        yield picture("kv-usage", kv_usage(servers), caption)
    if any(_known(each, [*MEMORY]) for each in known):
        caption = "Resident memory of what kvswarm started; GPUs with all who use them."
        yield picture("memory", memory(servers), caption)


def _of_labels(runs: Mapping[str, RetrievalSeries]) -> Iterator[Picture]:
    """Of runs that looked for a document, or that had wrong labels."""
    if any(run.is_retrieved for run in runs.values()):
        caption = (
            "Each retrieval by the moment its request was sent; below it the part of the time to"
            " first token that it took, in spans of time."
        )
        yield picture("retrieval", retrieval(runs), caption)
    judged = {name: run for name, run in runs.items() if run.is_retrieved or run.has_wrong}
    if judged:
        caption = "Requests about each document by their label, the most wrong ones first."
        yield picture("labels", labels(judged), caption)


def _of_outcomes(runs: Runs) -> Iterator[Picture]:
    if runs:
        caption = "Every request that ended, by what became of it."
        yield picture("outcomes", outcomes(runs), caption)


def _known(series: ServerSeries, columns: Sequence[str]) -> bool:
    found = [series.known(name) for name in columns]
    return any(each is not None and bool(np.nanmax(each) >= 0) for each in found)


def picture(name: str, figure: Figure, caption: str, wide: bool = False) -> Picture:
    """A figure as it stands on a page; its titles are what it shows for those who do not see it."""
    axes = [each.get_title(loc="left") for each in figure.axes]
    label = "; ".join(title for title in axes if title)
    return Picture(name, svg_text(figure, label, name), caption, wide)


def found_of(run: ReportedRun) -> RetrievalSeries:
    """What it looked for, and whether its labels were right, in the order of sending."""
    document = run.requests.text("context_id")
    return RetrievalSeries(
        at_s=run.requests.at_s,
        retrieval_ms=run.requests.number("retrieval_ms"),
        ttft_ms=run.requests.number("ttft_ms"),
        right=run.requests.flag("label_correct"),
        document=document.codes,
        documents=document.names,
    )
