"""docs/reference/retrieval.md against the code: routes and fields."""

import re
from pathlib import Path

from rag_store.cli.figures import Figures, SizeFigures, as_json
from rag_store.document_index import Size
from rag_store.evaluation import Evaluation
from rag_store.service.handlers import Handlers, Limits
from rag_store.service.server import make_app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "retrieval.md").read_text()


def rows(head: str) -> list[list[str]]:
    """The cells of the first table whose header starts with `head`."""
    _, _, rest = PAGE.partition(f"\n| {head} |")
    lines = rest.split("\n\n")[0].splitlines()[2:]
    assert lines, head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


async def test_every_route_stands_there() -> None:
    app = make_app(Handlers(Limits()))
    known = {
        f"{route.method} {route.resource.canonical}".replace("{doc_id}", "ID")
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {row[0].strip("`") for row in rows("route")} == known


def test_every_field_of_eval_stands_there() -> None:
    nothing = Figures((SizeFigures(Size(0, 0), Evaluation((), ())),), 0.0, {})
    said = {name for row in rows("field") for name in re.findall(r"`([^`]+)`", row[0])}
    assert said == as_json(nothing).keys()
