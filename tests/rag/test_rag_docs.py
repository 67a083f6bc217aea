"""docs/reference/retrieval.md against the code: defaults, routes, metrics, fields."""

import re
from pathlib import Path

import pytest

from rag_store.cli import main as rag_main
from rag_store.cli.figures import Figures, SizeFigures, as_json
from rag_store.cli.options import Parser, add_library_options
from rag_store.cli.serve import _parser as serve_parser
from rag_store.document_index import Size
from rag_store.evaluation import Evaluation
from rag_store.service.app import make_app
from rag_store.service.state import Limits, State

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "retrieval.md").read_text()


def rows(head: str) -> list[list[str]]:
    """The cells of the first table whose header starts with `head`."""
    _, _, rest = PAGE.partition(f"\n| {head} |")
    lines = rest.split("\n\n")[0].splitlines()[2:]
    assert lines, head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_option_of_the_library_stands_with_its_default() -> None:
    parser = Parser("x", "")
    add_library_options(parser)
    known = {flag: str(action.default) for action in parser._actions
             for flag in action.option_strings if flag not in ("-h", "--help")}  # fmt: skip
    said = {row[0].strip("`"): row[1] for row in rows("option")}
    assert said == known


def test_every_option_of_serve_stands_with_its_default() -> None:
    _, _, rest = PAGE.partition("Options of `kvswarm rag serve`:")
    found = re.findall(r"^\| `(--[a-z-]+)` \| (\S+) \|", rest.split("\n## ")[0], re.MULTILINE)
    known = {flag: str(action.default) for action in serve_parser()._actions
             for flag in action.option_strings}  # fmt: skip
    assert {flag: known[flag] for flag, _ in found} == dict(found)
    assert len(found) == 6


async def test_every_route_stands_there() -> None:
    app = make_app(State(Limits()))
    known = {
        f"{route.method} {route.resource.canonical}".replace("{doc_id}", "ID")
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {row[0].strip("`") for row in rows("route")} == known


def test_every_metric_stands_there() -> None:
    page = State(Limits()).metrics.page().decode()
    known = set(re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE))
    said = {name for row in rows("metric") for name in re.findall(r"`([^`]+)`", row[0])}
    assert said == {name for name in known if not name.endswith("_created")}


def test_every_field_of_eval_stands_there() -> None:
    nothing = Figures((SizeFigures(Size(0, 0), Evaluation((), ())),), 0.0, {})
    said = {name for row in rows("field") for name in re.findall(r"`([^`]+)`", row[0])}
    assert said == as_json(nothing).keys()


@pytest.mark.parametrize("row", rows("command"), ids=lambda row: row[0])
def test_every_command_is_in_the_help(row: list[str]) -> None:
    assert row[0].strip("`").removesuffix(" PATH") in rag_main.HELP
