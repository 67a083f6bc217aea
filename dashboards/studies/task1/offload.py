"""LMCache's memory behind the engine's own cache, against none."""

from collections.abc import Iterator

from dashboards.report.wording import listed
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import COMPUTED, Cells
from dashboards.studies.contrast import contrast
from dashboards.studies.pictures import Line, against, line_of
from dashboards.studies.sweepwise import Contrasts
from dashboards.studies.table import FIRST, LATENCY, Table, cell_table
from dashboards.studies.targets import OFFLOAD, PLAIN
from dashboards.studies.wording import count, percent

COLUMNS = (*LATENCY, "hit_rate", "external_hit_rate", COMPUTED)
SAME = 1.01
"""Up to so many times the tokens is as few: single chunks come and go with the moment."""
WORKLOADS = {"offload": "Many contexts in turn", "long": "A few long prompts repeated"}


def offload(cells: Cells) -> Answer:
    """For each workload, the engine alone against the engine with each size of L1."""
    short: list[str] = []
    sentences: list[str] = []
    tables: list[Table] = []
    for part, name in WORKLOADS.items():
        found = _by_memory(cells.of(part))
        if found.found:
            short.append(
                found.said(
                    f"{name}, with LMCache behind the engine's cache",
                    "the first token",
                    "comes {} times as fast",
                    "takes {} times as long",
                )
            )
            sentences += (*_where_from(name, cells.of(part)), *_enough(name, cells.of(part)))
            tables.append(found.table)
    picture = Picture(
        "offload",
        against(list(_panels(cells)), "LMCache's memory, GB (0: none)", False),
        "computed prompt tokens and time to first token against LMCache's memory",
    )
    return Answer(
        "What does LMCache's memory add behind the engine's cache, and how much of it is enough?",
        (" ".join(short) or "Not measured.", *sentences),
        (*tables, cell_table(cells, ("context_tokens", "target", "l1_gb"), COLUMNS)),
        (picture,),
    )


def _by_memory(cells: Cells) -> Contrasts:
    alone, behind = cells.where(target=PLAIN), cells.where(target=OFFLOAD)
    names = "without LMCache, mean TTFT", "with it, mean TTFT"
    return Contrasts(
        "GB of LMCache",
        tuple(
            (size, contrast(alone, behind.where(l1_gb=size), names, "ttft_ms.mean"))
            for size in behind.values("l1_gb")
        ),
    )


def _where_from(name: str, cells: Cells) -> Iterator[str]:
    behind = cells.where(target=OFFLOAD)
    parts = [("without LMCache", cells.where(target=PLAIN))]
    parts += [(f"with {size} GB", behind.where(l1_gb=size)) for size in behind.values("l1_gb")]
    said = []
    for memory, part in parts:
        computed, taken = part.median(COMPUTED), part.median("external_hit_rate")
        if computed is not None:
            share = f" ({percent(taken)} of all came from it)" if taken else ""
            said.append(f"{count(computed)} {memory}{share}")
    if said:
        yield f"{name}: the prompt tokens that had to be computed in a run were {listed(said)}."


def _enough(name: str, cells: Cells) -> Iterator[str]:
    """Whether the largest memory saves tokens in every run; if so, the smallest that computes no
    more on the same requests."""
    behind = cells.where(target=OFFLOAD)
    *less, largest = behind.values("l1_gb")
    most = _by_repeat(behind.where(l1_gb=largest))
    alone = _by_repeat(cells.where(target=PLAIN))
    both = alone.keys() & most.keys()
    saved = sum(alone[repeat] > SAME * most[repeat] for repeat in both)
    if both:
        none = "" if saved == len(both) else ", so that no size is called enough"
        yield f"{name}: {largest} GB saved tokens in {saved} of {len(both)} runs{none}."
    if saved < len(both):
        return
    for size in less:
        computed = _by_repeat(behind.where(l1_gb=size))
        both = computed.keys() & most.keys()
        if both and all(computed[repeat] <= SAME * most[repeat] for repeat in both):
            yield f"{name}: {size} GB are enough; more computes no fewer tokens."
            return
    if less and most:
        yield f"{name}: of the sizes tried, none below {largest} GB computes as little."


def _by_repeat(cells: Cells) -> dict[int, float]:
    found = ((cell.repeat, cell.figure(COMPUTED)) for cell in cells)
    return {repeat: computed for repeat, computed in found if computed is not None}


def _panels(cells: Cells) -> Iterator[tuple[str, str, list[Line]]]:
    for title, y, figure in (
        ("Computed", "prompt tokens in a run", COMPUTED),
        ("Time to first token", "mean, ms", FIRST),
    ):
        yield title, y, [_line(name, cells.of(part), figure) for part, name in WORKLOADS.items()]


def _line(name: str, cells: Cells, figure: str) -> Line:
    """From the engine alone, at 0, on."""
    none = cells.where(target=PLAIN).figures(figure)
    behind = line_of("", cells.where(target=OFFLOAD), "l1_gb", figure)
    start = ((0.0, tuple(none)),) if none else ()
    return Line(name, (*start, *behind.points))
