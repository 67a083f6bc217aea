"""What changes inside the engine when it serves context by context."""

from statistics import median

from dashboards.figures.timeline import timeline
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import COMPUTED, Cells
from dashboards.studies.requests import Requests, strips
from dashboards.studies.table import Table
from dashboards.studies.task2.gain import MORE, ORDERS
from dashboards.studies.wording import count, times


def why(cells: Cells) -> Answer:
    """How often the engine turns to another context, and what it computes for that, on the
    smallest cache."""
    cells = cells.where(kv_tokens=cells.values("kv_tokens")[0])
    served = {
        name: [Requests.read(cell.run) for cell in cells.counted.where(target=target)]
        for target, name in ORDERS.items()
    }
    turns = {name: [each.turns() for each in runs] for name, runs in served.items() if runs}
    rows = [
        (
            name,
            count(len(served[name])),
            *map(count, _middle(found)),
            ""
            if (tokens := cells.where(target=target).median(COMPUTED)) is None
            else count(tokens),
        )
        for target, name in ORDERS.items()
        if (found := turns.get(name))
    ]
    contexts, orders = strips({name: runs[0] for name, runs in served.items() if runs})
    picture = Picture(
        "order",
        timeline(orders, contexts, 7.2),
        "each request of a run in the colour of its context, in the order of service",
    )
    header = ("order", "runs", "contexts taken up", "fewest possible", "computed tokens")
    return Answer(
        "Why does the order of contexts matter?",
        tuple(_sentences(turns, cells)),
        (Table(header, tuple(rows)),),
        (picture,),
    )


def _sentences(turns: dict[str, list[tuple[int, int]]], cells: Cells) -> list[str]:
    parts = {name: _middle(found) for name, found in turns.items()}
    said = [
        f"{name} {count(taken)} times (at least {count(fewest)} are needed)"
        for name, (taken, fewest) in parts.items()
    ]
    if len(parts) < 2:
        return ["Not measured in both orders."]
    plain, ordered = (cells.where(target=target).median(COMPUTED) for target in ORDERS)
    text = f"In a run the engine takes up a context: {'; '.join(said)}."
    if plain is None or not ordered:
        return [text]
    if plain > MORE * ordered:
        return [
            "A context that the engine turns back to may have left the cache: first come, first"
            f" served computes {times(plain / ordered)} as many prompt tokens"
            f" ({count(plain)} against {count(ordered)}).",
            text,
        ]
    if ordered > MORE * plain:
        return [
            "Here it is no gain: serving by context computes more prompt tokens"
            f" ({count(ordered)} against {count(plain)}).",
            text,
        ]
    return [
        "It does not here: both orders compute about the same prompt tokens"
        f" ({count(plain)} and {count(ordered)}).",
        text,
    ]


def _middle(found: list[tuple[int, int]]) -> tuple[float, float]:
    """Turns and fewest turns of a run, the medians over all."""
    taken, fewest = zip(*found, strict=True)
    return median(taken), median(fewest)
