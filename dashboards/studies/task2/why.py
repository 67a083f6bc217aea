"""What changes inside the engine when it serves context by context."""

from dashboards.figures.timeline import timeline
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import COMPUTED, Cells
from dashboards.studies.requests import Requests, strips
from dashboards.studies.table import Table
from dashboards.studies.task2.gain import ORDERS
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
            count(sum(taken for taken, _ in found)),
            count(sum(fewest for _, fewest in found)),
            count(cells.where(target=target).median(COMPUTED) or 0),
        )
        for target, name in ORDERS.items()
        if (found := turns.get(name))
    ]
    contexts, orders = strips({name: runs[0] for name, runs in served.items() if runs})
    picture = Picture(
        "order",
        timeline(orders, contexts, 7.2),
        "each request in the colour of its context, in the order of service",
    )
    header = ("order", "runs", "turns to another context", "fewest possible", "computed tokens")
    return Answer(
        "Why does the order of contexts matter?",
        tuple(_sentences(turns, cells)),
        (Table(header, tuple(rows)),),
        (picture,),
    )


def _sentences(turns: dict[str, list[tuple[int, int]]], cells: Cells) -> list[str]:
    parts = {
        name: [sum(column) for column in zip(*found, strict=True)] for name, found in turns.items()
    }
    said = [
        f"{name} {count(taken)} times (at least {count(fewest)} are needed)"
        for name, (taken, fewest) in parts.items()
    ]
    if len(parts) < 2:
        return ["Not measured in both orders."]
    plain, ordered = (cells.where(target=target).median(COMPUTED) for target in ORDERS)
    text = f"The engine turns to another context: {'; '.join(said)}."
    if plain is None or not ordered:
        return [text]
    if plain > 1.05 * ordered:
        return [
            f"Each turn drives another context out of a cache too small for all: first come, first"
            f" served computes {times(plain / ordered)} as many prompt tokens"
            f" ({count(plain)} against {count(ordered)}).",
            text,
        ]
    return [
        "It does not here: both orders compute about the same prompt tokens"
        f" ({count(plain)} and {count(ordered)}).",
        text,
    ]
