"""An old request fed again, against the size of the engine's cache."""

from collections.abc import Iterator

from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cells
from dashboards.studies.contrast import Contrast, contrast_runs
from dashboards.studies.pictures import against, by_users
from dashboards.studies.requests import Requests, repeated_part
from dashboards.studies.sweepwise import Contrasts
from dashboards.studies.table import LATENCY, REUSED, Table, cell_table
from dashboards.studies.wording import count, crowd, listed, percent

SIZE = "kv_tokens"
SIDES = "new, mean TTFT", "repeated, mean TTFT"


def old_requests(cells: Cells) -> Answer:
    """Repeats against new requests of the same run, for each size."""
    sentences: list[str] = []
    tables: list[Table] = []
    for users in cells.values("users"):
        part = cells.where(users=users)
        again = Contrasts("tokens of cache", tuple(_by_size(part)))
        said = again.said(
            f"With {crowd(users)}",
            "the reply to an old request",
            "begins {} times as fast as that to a new one",
            "takes {} times as long to begin as that to a new one",
            "a difference from a new one",
        )
        sentences += [*_kept(part), said]
        tables.append(again.table)
    picture = Picture(
        "repeat",
        against(by_users(cells, SIZE), "cache of the engine, tokens"),
        "hit rate and time to first token against the size of the cache",
    )
    return Answer(
        "What does an old request cost when it comes again, with a cache of which size?",
        tuple(sentences),
        (*tables, cell_table(cells, (SIZE, "users"), (*LATENCY, *REUSED))),
        (picture,),
    )


def _kept(cells: Cells) -> Iterator[str]:
    """What the cache still has of an old request, of one crowd."""
    known = {
        count(float(size)): percent(share)
        for size in cells.values(SIZE)
        if (share := _share(cells.where(kv_tokens=size).counted)) is not None
    }
    if known:
        yield (
            f"With {crowd(cells.all[0].settings['users'])}, a cache of {listed([*known])} tokens"
            f" still has {listed([*known.values()])} of the prompt of an old request."
        )


def _share(cells: Cells) -> float | None:
    if not len(cells):
        return None
    requests = Requests.joined([Requests.read(cell.run) for cell in cells])
    whole = float(requests.prompt_tokens[requests.repeat].sum())
    return float(requests.cached_tokens[requests.repeat].sum()) / whole if whole else None


def _by_size(cells: Cells) -> Iterator[tuple[str, Contrast]]:
    for size in cells.values(SIZE):
        yield count(float(size)), _again(cells.where(kv_tokens=size))


def _again(cells: Cells) -> Contrast:
    runs = [cell.run for cell in cells.sound]
    new, old = ([repeated_part(run, repeated) for run in runs] for repeated in (False, True))
    return contrast_runs(new, old, SIDES, "ttft_ms.mean")
