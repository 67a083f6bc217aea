"""The page of a search for the highest load: the edge that was found, and each trial."""

import csv
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from dashboards.figures.saturation import draw
from dashboards.report.gallery import picture
from dashboards.report.page import PageContent, Section, render
from dashboards.report.tables import Table, TableRow
from dashboards.report.wording import number, percent
from loadgen.errors import UsageError
from loadgen.runs.json_file import malformed, read_object
from loadgen.saturate.folder import SATURATE_JSON, TRIALS_CSV, Point
from loadgen.saturate.objective import Objective
from loadgen.saturate.search import Space
from loadgen.saturate.wording import NOT_MET
from loadgen.stats.summary import TAILS


def saturation_page(folder: Path) -> str:
    """The page of a search in `folder`, over or broken off. Raises UsageError."""
    kept = read_object(folder / SATURATE_JSON)
    points = read_points(folder / TRIALS_CSV)
    if not points:
        raise UsageError(f"no trial of the search {folder} came to its end: make some first")
    definition, result = kept.get("definition") or {}, kept.get("result") or {}
    try:
        objective = Objective.parse(definition["objective"])
        space = Space(*(definition[name] for name in ("by", "from", "to", "tolerance")))
    except (KeyError, TypeError, AttributeError) as error:
        raise malformed(folder / SATURATE_JSON, f"{error} is missing or wrong") from None
    figure = draw(points, objective.latency, space, (result.get("met"), result.get("not_met")))
    caption = (
        "Each mark is a trial: a circle where its load met the objective, a cross where it did not,"
        " a diamond where that is undecided. Lines join the medians of repeats."
    )
    said = tuple(map(str, result.get("said") or ("The search is not over.",)))
    words = [*map(str, definition.get("command") or ()), "--slo", str(objective)]
    return render(
        PageContent(
            title=f"{folder.name}: {objective}",
            sections=(
                Section(
                    folder.name,
                    str(folder),
                    sentences=said,
                    commands=(("the search", shlex.join(["kvswarm", "saturate", *words])),),
                ),
            ),
            pictures=[picture("saturation", figure, caption, wide=True)],
            tables=[trials_table(points, space)],
        )
    )


def read_points(path: Path) -> list[Point]:
    """The trials of a table as `SearchFolder.write_table` has it, none without one. Raises
    UsageError for a damaged one."""
    if not path.is_file():
        return []
    kinds = get_type_hints(Point)
    with path.open(newline="", encoding="utf-8") as file:
        try:
            return [
                Point(**{name: _value(row[name], kind) for name, kind in kinds.items()})
                for row in csv.DictReader(file)
            ]
        except (KeyError, ValueError, TypeError) as error:
            raise malformed(path, str(error)) from None


def _value(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if not text:
        return None
    if kind in (bool, bool | None):
        return text == "true"
    return int(text) if kind is int else float(text)


def trials_table(points: Sequence[Point], space: Space) -> Table:
    """A row for each trial, in the order of load."""
    columns = (
        "load",
        "verdict",
        "requests",
        "due and answered/s",
        "p50",
        "p95",
        "p99",
        "goodput",
        "why",
    )
    rows = []
    for each in sorted(points, key=lambda point: (point.load, point.trial)):
        cells = (
            NOT_MET.get(each.verdict, "met"),
            number(each.arrivals),
            number(each.ok_per_s),
            *(number(value) for value in (each.p50_ms, each.p95_ms, each.p99_ms)),
            percent(each.goodput),
            each.reason,
        )
        rows.append(TableRow(space.said(each.load), cells))
    note = f"Percentiles of {points[0].metric}, without the warm-up of each trial. {TAILS}"
    return Table("Trials", columns, tuple(rows), note=note)
