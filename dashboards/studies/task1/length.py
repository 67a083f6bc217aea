"""Latency against the length of context and question, with and without a prefix cache."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import theilslopes

from dashboards.figures.line_fit import LEAST_SPREAD, fit_line
from dashboards.studies.answer import LATENCY, REUSED, StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import FIRST, NO_REUSE, PLAIN, REQUESTS_PER_S, Cells
from dashboards.studies.contrast import LEVEL, Contrast, contrast
from dashboards.studies.pictures import FIRST_PANEL, Bar, PointCloud, bars, clouds
from dashboards.studies.requests import answered, is_hit
from dashboards.studies.wording import crowd, duration, percent
from loadgen.compare.interval import Interval, mean_of_repeats
from loadgen.runs.requests import Requests

OF_RUNS = (
    "Each run gives one slope, the median over all pairs of its requests (Theil 1950); these are"
    " the means over the runs."
)
OF_REQUESTS = (
    "There is one run of each kind: its intervals come from single requests, as if none had waited"
    " for another, and do not know how much runs differ."
)
WAITING = "; the wait for other requests is part of it and hides what the own prompt takes"
COMPUTED, CACHED = "computed", "prefix from the cache"
LEAST_REQUESTS = 5
"""Of a run, for a slope of its own."""


def by_length(cells: Cells) -> StudyAnswer:
    """How much each further token costs, computed and from the cache."""
    panels: dict[str, list[PointCloud]] = {}
    sentences: list[str] = []
    several = False
    for users, part in cells.by("users"):
        runs = dict(_runs(part.sound))
        several |= any(len(parts) > 1 for parts in runs.values())
        slopes = {name: _slope(parts) for name, parts in runs.items()}
        panels[crowd(users)] = [_cloud(name, parts, slopes[name]) for name, parts in runs.items()]
        sentences.append(_growth(users, slopes, part.where(target=NO_REUSE).middle(FIRST)))
    picture = StudyPicture(
        "length",
        clouds(panels, "prompt (context and question), tokens", "time to first token, ms"),
        "time to first token of each request against its prompt's length",
    )
    columns = (*LATENCY, "e2e_p50_ms", *REUSED)
    return StudyAnswer(
        "How does latency grow with the length of context and question?",
        (" ".join(sentences), OF_RUNS if several else OF_REQUESTS),
        (cell_table(cells, ("target", "users"), columns),),
        (picture,),
    )


def _runs(cells: Cells) -> Iterator[tuple[str, list[Requests]]]:
    """Of each run the prompts of an engine without a prefix cache, or those that another one found
    in it."""
    for name, target in ((COMPUTED, NO_REUSE), (CACHED, PLAIN)):
        runs = [answered(cell.run) for cell in cells.where(target=target)]
        if runs:
            yield name, [run.taken(is_hit(run) == (name == CACHED)) for run in runs]


def _cloud(name: str, runs: Sequence[Requests], slope: Interval | None) -> PointCloud:
    """With a line only where it is not level by all that is known."""
    x, y = (
        np.concatenate([run.number(column) for run in runs])
        for column in ("prompt_tokens", "ttft_ms")
    )
    is_certain = slope is not None and (slope.low > 0 or slope.high < 0)
    return PointCloud(name, x, y, fit_line(x, y) if is_certain else None)


def _slope(runs: Sequence[Requests]) -> Interval | None:
    """Milliseconds a token: the mean over the slopes of runs; of one run the slope through its
    requests. None where there are too few of different lengths."""
    if len(runs) == 1:
        fit = fit_line(runs[0].number("prompt_tokens"), runs[0].number("ttft_ms"))
        return None if fit is None else Interval(fit.slope, fit.low, fit.high)
    slopes = [found for run in runs if (found := _slope_of_run(run)) is not None]
    return mean_of_repeats(slopes, LEVEL) if len(slopes) > 1 else None


def _slope_of_run(run: Requests) -> float | None:
    x, y = run.number("prompt_tokens"), run.number("ttft_ms")
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = x[known], y[known]
    if len(x) < LEAST_REQUESTS or x.max() < LEAST_SPREAD * x.min():
        return None
    return float(theilslopes(y, x).slope)


def _growth(users: str, slopes: dict[str, Interval | None], level_ms: float | None) -> str:
    """The level first: with more users a token may add less to what takes longer as a whole."""
    who, computed, cached = crowd(users), slopes.get(COMPUTED), slopes.get(CACHED)
    if computed is None:
        return f"With {who}: too few requests of different lengths to tell."
    if computed.low <= 0:
        why = "" if float(users) == 1 else WAITING
        return (
            f"With {who} there is no evidence that the time to first token grows with the prompt"
            f" ({_within(computed)} for each 1,000 tokens){why}."
        )
    level = ""
    if level_ms is not None:
        level = (
            f"the first token takes {duration(level_ms)} where prompts are computed (mean), and "
        )
    text = (
        f"With {who}, {level}each further 1,000 prompt tokens add {_per_thousand(computed)} to the"
        " time to first token where they are computed"
    )
    if cached is None:
        return f"{text}; too few prompts were found in a cache to say the same of those."
    if cached.low <= 0 and cached.high < computed.low:
        return (
            f"{text}; there is no evidence that they add any where the prefix comes from the cache"
            f" ({_within(cached)})."
        )
    if cached.high < computed.low:
        return f"{text}, and {_per_thousand(cached)} where the prefix comes from the cache."
    return (
        f"{text}; there is no evidence that they add less where the prefix comes from the cache"
        f" ({_within(cached)})."
    )


def _per_thousand(slope: Interval) -> str:
    return f"{duration(1000 * slope.estimate)} ({_ends(slope)})"


def _within(slope: Interval) -> str:
    return f"{duration(1000 * slope.estimate)}, {_ends(slope)}"


def _ends(slope: Interval) -> str:
    return f"{duration(1000 * slope.low)} to {duration(1000 * slope.high)}"


ARMS = {NO_REUSE: "without reuse", PLAIN: "with reuse"}


def with_and_without(cells: Cells) -> StudyAnswer:
    """What reuse changes in the time to first token and in throughput."""
    short: list[str] = []
    sentences: list[str] = []
    names = ARMS[NO_REUSE], ARMS[PLAIN]
    for users, part in cells.by("users"):
        without, reusing = (part.where(target=name) for name in ARMS)
        first = contrast(without, reusing, names)
        rate = contrast(without, reusing, names, "requests_per_s")
        short.append(f"With {crowd(users)}, {_worth(first, reusing.middle('hit_rate'))}")
        if first.row is not None:
            sentences.append(
                f"With {crowd(users)}, mean TTFT is {first.words}; throughput is {rate.words}."
            )
    picture = StudyPicture(
        "reuse", _reuse_bars(cells), "latency and throughput with and without reuse"
    )
    return StudyAnswer(
        "What is prefix reuse worth on the same requests?",
        (" ".join(short), *sentences),
        (cell_table(cells, ("target", "users"), (*LATENCY, REQUESTS_PER_S, *REUSED)),),
        (picture,),
    )


def _worth(first: Contrast, hits: float | None) -> str:
    share = "" if hits is None else f" ({percent(hits)} of the prompt tokens came from the cache)"
    said = first.said(
        "reuse makes the first token come {} as fast",
        "reuse makes the first token take {} as long",
        "there is no evidence that reuse changes the time to first token",
        "{}: nothing can be said of reuse",
    )
    return f"{said}{share}."


def _reuse_bars(cells: Cells) -> Figure:
    rows = []
    for users, of_users in cells.by("users"):
        for target, name in ARMS.items():
            part = of_users.where(target=target)
            rows.append(Bar(f"{crowd(users)}, {name}", part, target == PLAIN))
    panels = {FIRST: FIRST_PANEL, REQUESTS_PER_S: ("Throughput", "requests/s")}
    return bars(panels, rows)
