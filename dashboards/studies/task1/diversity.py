"""What requests have in common: more contexts, how they are mixed, and old requests fed again."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np

from dashboards.report.wording import listed
from dashboards.studies.answer import (
    LATENCY,
    REUSED,
    MarkdownTable,
    StudyAnswer,
    StudyPicture,
    cell_table,
)
from dashboards.studies.cell import FIRST, Cells
from dashboards.studies.contrast import Contrast, Contrasts, contrast, contrast_runs
from dashboards.studies.pictures import FIRST_PANEL, Line, against, by_users
from dashboards.studies.requests import answered, repeated_part
from dashboards.studies.wording import count, crowd, percent

ALIKE = {"zipf": 0, "stickiness": 0}
"""All contexts equally popular, each request drawn anew."""
MIXES = (
    ("zipf", "where some are more popular (zipf {})"),
    ("stickiness", "where requests tend to keep the context (stickiness {})"),
)


def diversity(cells: Cells) -> StudyAnswer:
    """Against the fewest contexts, and against contexts that are all alike."""
    alike = cells.where(**ALIKE)
    picture = StudyPicture(
        "diversity",
        against(by_users(alike, "contexts"), "contexts to draw from"),
        "hit rate and time to first token against the number of contexts",
    )
    return StudyAnswer(
        "What does growing diversity cost: more contexts, and how they are mixed?",
        (*_more_contexts(alike), *_other_mixes(cells)),
        (
            *(_against_fewest(part).table for _, part in alike.by("users")),
            cell_table(cells, ("contexts", "zipf", "stickiness", "users"), (*LATENCY, *REUSED)),
        ),
        (picture,),
    )


def _against_fewest(cells: Cells) -> Contrasts:
    """Of one crowd."""
    fewest, *more = cells.values("contexts")
    base = cells.where(contexts=fewest)
    names = f"{fewest} contexts, mean TTFT", "so many, mean TTFT"
    return Contrasts(
        "contexts",
        tuple((each, contrast(base, cells.where(contexts=each), names)) for each in more),
    )


def _more_contexts(cells: Cells) -> Iterator[str]:
    """A sentence or two for each crowd."""
    for users, part in cells.by("users"):
        said = [*_hits(users, part)]
        found = _against_fewest(part)
        if found.found:
            said.append(found.said(f"Against {part.values('contexts')[0]} contexts"))
        if said:
            yield " ".join(said)


def _hits(users: str, cells: Cells) -> Iterator[str]:
    rates = cells.middles("contexts", "hit_rate")
    if rates:
        cache = listed([count(float(size)) for size in cells.values(SIZE)])
        yield (
            f"With {crowd(users)}, a cache of {cache} tokens has"
            f" {listed([*map(percent, rates.values())])} of the prompt tokens where requests draw"
            f" at random from {listed([*rates])} contexts."
        )


def _other_mixes(cells: Cells) -> Iterator[str]:
    for setting, name in MIXES:
        for value in cells.values(setting):
            if float(value):
                mixed = cells.where(**{**ALIKE, setting: value})
                for _, part in mixed.by("contexts"):
                    yield from _mix(cells, part, name.format(value))


def _mix(cells: Cells, mixed: Cells, name: str) -> Iterator[str]:
    first = mixed.all[0].settings
    plain = cells.where(**ALIKE, contexts=first["contexts"], users=first["users"])
    mixed = mixed.where(users=first["users"])
    names = "with all contexts alike", name
    found = contrast(plain, mixed, names)
    hits = contrast(plain, mixed, names, "cached_share")
    if hits.row is not None:
        yield (
            f"{first['contexts']} contexts and {crowd(first['users'])}: mean TTFT is {found.words};"
            f" the cached share of the prompts is {hits.words}."
        )


SIZE = "kv_tokens"
SIDES = "new, mean TTFT", "repeated, mean TTFT"


def old_requests(cells: Cells) -> StudyAnswer:
    """Repeats against new requests of the same run, for each size."""
    sentences: list[str] = []
    tables: list[MarkdownTable] = []
    for users, part in cells.by("users"):
        found = tuple((count(float(size)), _again(each)) for size, each in part.by(SIZE))
        again = Contrasts("tokens of cache", found)
        said = again.said(
            f"With {crowd(users)}",
            "the reply to an old request",
            "begins {} times as fast as that to a new one",
            "takes {} times as long to begin as that to a new one",
            "a difference in time to first token from a new one",
        )
        sentences += [said, *_kept(users, part)]
        tables.append(again.table)
    picture = StudyPicture(
        "repeat",
        against(list(_repeat_panels(cells)), "cache of the engine, tokens"),
        "what the cache has of an old request, and the time to first token of old and new ones",
    )
    return StudyAnswer(
        "What does an old request cost when it comes again, with a cache of which size?",
        tuple(sentences),
        (*tables, cell_table(cells, (SIZE, "users"), (*LATENCY, *REUSED))),
        (picture,),
    )


def _kept(users: str, cells: Cells) -> Iterator[str]:
    """What the cache still has of an old request."""
    known = {
        count(float(size)): percent(median(shares) / 100)
        for size, part in cells.by(SIZE)
        if (shares := _cached_percents(part))
    }
    if known:
        yield (
            f"With {crowd(users)}, a cache of {listed([*known])} tokens still has"
            f" {listed([*known.values()])} of the prompt of an old request."
        )


def _cached_percents(cells: Cells) -> list[float]:
    """Of each run, over its old requests."""
    runs = [answered(cell.run) for cell in cells.counted]
    old = [run.taken(run.flag("repeat") == 1) for run in runs]
    shares = [each.figure("cached_share") or 0.0 for each in old if len(each)]
    return [100 * share for share in shares]


def _repeat_panels(cells: Cells) -> Iterator[tuple[str, str, list[Line]]]:
    crowds = cells.by("users")
    yield (
        "Of an old request in the cache",
        "% of its prompt",
        [_line_of_runs(crowd(users), part, _cached_percents, "") for users, part in crowds],
    )
    lines = [
        _line_of_runs(
            (f"{crowd(users)}, " if len(crowds) > 1 else "") + f"{name} request",
            part,
            partial(_means_ms, name == "old"),
            FIRST,
        )
        for users, part in crowds
        for name in ("new", "old")
    ]
    yield *FIRST_PANEL, lines


def _line_of_runs(
    name: str, cells: Cells, figures: Callable[[Cells], list[float]], like: str
) -> Line:
    """A figure of each run, of the kind that the summary has as `like`."""
    points = ((float(size), tuple(figures(part))) for size, part in cells.by(SIZE))
    return Line(name, tuple((size, values) for size, values in points if values), like)


def _means_ms(old: bool, cells: Cells) -> list[float]:
    runs = [answered(cell.run) for cell in cells.sound]
    found = [run.number("ttft_ms")[run.flag("repeat") == old] for run in runs]
    return [float(np.nanmean(each)) for each in found if len(each)]


def _again(cells: Cells) -> Contrast:
    runs = [cell.run for cell in cells.sound]
    new, old = ([repeated_part(run, repeated) for run in runs] for repeated in (False, True))
    return contrast_runs(new, old, SIDES, made=len(cells))
