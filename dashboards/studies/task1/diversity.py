"""More contexts, and how unevenly and in which runs they are asked for."""

from collections.abc import Iterator

from dashboards.report.wording import listed
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cells
from dashboards.studies.contrast import contrast
from dashboards.studies.pictures import against, by_users
from dashboards.studies.sweepwise import Contrasts
from dashboards.studies.table import LATENCY, REUSED, cell_table
from dashboards.studies.wording import crowd, percent

ALIKE = {"zipf": 0, "stickiness": 0}
"""All contexts equally popular, each request drawn anew."""
MIXES = (
    ("zipf", "where some are more popular (zipf {})"),
    ("stickiness", "where requests tend to keep the context (stickiness {})"),
)


def diversity(cells: Cells) -> Answer:
    """Against the fewest contexts, and against contexts that are all alike."""
    alike = cells.where(**ALIKE)
    picture = Picture(
        "diversity",
        against(by_users(alike, "contexts"), "contexts that take turns"),
        "hit rate and time to first token against the number of contexts",
    )
    return Answer(
        "What does growing diversity cost: more contexts, and how they are mixed?",
        (*_more_contexts(alike), *_other_mixes(cells)),
        (
            *(_against_fewest(alike.where(users=users)).table for users in alike.values("users")),
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
        tuple(
            (each, contrast(base, cells.where(contexts=each), names, "ttft_ms.mean"))
            for each in more
        ),
    )


def _more_contexts(cells: Cells) -> Iterator[str]:
    """A sentence or two for each crowd."""
    for users in cells.values("users"):
        part = cells.where(users=users)
        said = [*_hits(part)]
        found = _against_fewest(part)
        if found.found:
            said.append(
                found.said(
                    f"Against {part.values('contexts')[0]} contexts",
                    "the first token",
                    "comes {} times as fast",
                    "takes {} times as long",
                )
            )
        if said:
            yield " ".join(said)


def _hits(cells: Cells) -> Iterator[str]:
    """Of one crowd."""
    known = {
        each: percent(rate)
        for each in cells.values("contexts")
        if (rate := cells.where(contexts=each).median("hit_rate")) is not None
    }
    if known:
        yield (
            f"With {crowd(cells.all[0].settings['users'])}, the cache has"
            f" {listed([*known.values()])} of the prompt tokens where {listed([*known])} contexts"
            " take turns."
        )


def _other_mixes(cells: Cells) -> Iterator[str]:
    for setting, name in MIXES:
        for value in cells.values(setting):
            mixed = cells.where(**{**ALIKE, setting: value})
            if float(value) == 0 or not len(mixed):
                continue
            for contexts in mixed.values("contexts"):
                yield from _mix(cells, mixed.where(contexts=contexts), name.format(value))


def _mix(cells: Cells, mixed: Cells, name: str) -> Iterator[str]:
    first = mixed.all[0].settings
    plain = cells.where(**ALIKE, contexts=first["contexts"], users=first["users"])
    mixed = mixed.where(users=first["users"])
    names = "with all contexts alike", name
    found = contrast(plain, mixed, names, "ttft_ms.mean")
    hits = contrast(plain, mixed, names, "cached_share")
    if hits.row is not None:
        yield (
            f"{first['contexts']} contexts and {crowd(first['users'])}: mean TTFT is {found.words};"
            f" the cached share of the prompts is {hits.words}."
        )
