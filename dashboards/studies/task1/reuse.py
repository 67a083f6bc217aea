"""The same requests with and without a prefix cache."""

from matplotlib.figure import Figure

from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cells
from dashboards.studies.contrast import Contrast, contrast
from dashboards.studies.pictures import Bar, bars
from dashboards.studies.table import FIRST, LATENCY, REUSED, cell_table
from dashboards.studies.targets import NO_REUSE, PLAIN
from dashboards.studies.wording import crowd, percent, times

ARMS = {NO_REUSE: "without reuse", PLAIN: "with reuse"}


def with_and_without(cells: Cells) -> Answer:
    """What reuse changes in the time to first token and in throughput."""
    short: list[str] = []
    sentences: list[str] = []
    names = ARMS[NO_REUSE], ARMS[PLAIN]
    for users in cells.values("users"):
        without, reusing = (cells.where(users=users, target=name) for name in ARMS)
        first = contrast(without, reusing, names, "ttft_ms.mean")
        rate = contrast(without, reusing, names, "requests_per_s")
        short.append(f"With {crowd(users)}, {_worth(first, reusing.median('hit_rate'))}")
        if first.row is not None:
            sentences.append(
                f"With {crowd(users)}, mean TTFT is {first.words}; throughput is {rate.words}."
            )
    picture = Picture("reuse", _bars(cells), "latency and throughput with and without reuse")
    return Answer(
        "What is prefix reuse worth on the same requests?",
        (" ".join(short), *sentences),
        (cell_table(cells, ("target", "users"), (*LATENCY, "requests_per_s", *REUSED)),),
        (picture,),
    )


def _worth(first: Contrast, hits: float | None) -> str:
    share = "" if hits is None else f" ({percent(hits)} of the prompt tokens came from the cache)"
    if first.verdict == "better" and first.factor:
        return f"reuse makes the first token come {times(1 / first.factor)} as fast{share}."
    if first.verdict == "worse" and first.factor:
        return f"reuse makes the first token take {times(first.factor)} as long{share}."
    if first.verdict == "no evidence":
        return f"there is no evidence that reuse changes the time to first token{share}."
    return f"{first.verdict}: nothing can be said of reuse{share}."


def _bars(cells: Cells) -> Figure:
    rows = []
    for users in cells.values("users"):
        for target, name in ARMS.items():
            part = cells.where(users=users, target=target)
            values = part.figures(FIRST), part.figures("requests_per_s")
            rows.append(Bar(f"{crowd(users)}, {name}", values, target == PLAIN))
    return bars((("Time to first token", "mean, ms"), ("Throughput", "requests/s")), rows)
