"""The page of a sweep: its figures over each of its axes, in words, pictures and tables."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from dashboards.figures.axes_of_runs import AxisLine, is_numeric, over_axis
from dashboards.report.gallery import Picture, picture
from dashboards.report.page import PageContent, Section, render
from dashboards.report.tables import Table, TableRow
from dashboards.report.wording import counted, listed, number, percent, utc
from loadgen.errors import UsageError
from loadgen.runs.json_file import read_object
from loadgen.stats.summary import TAILS
from loadgen.sweep.folder import SWEEP_JSON
from loadgen.sweep.matrix import axes_title
from loadgen.sweep.table import Cell, read_cells

SHOWN: Mapping[str, str] = {
    "ttft_p50_ms": "TTFT p50 (ms)",
    "ttft_p95_ms": "TTFT p95 (ms)",
    "makespan_p50_s": "batch makespan p50 (s)",
    "goodput_share": "goodput (share)",
    "goodput_per_s": "goodput (requests/s)",
    "rejected_share": "rejected (share)",
    "output_tokens_per_s": "output tokens/s",
    "computed_prompt_tokens": "prompt tokens computed a request",
    "hit_rate": "hit rate of the prefix cache",
}
SHARES = ("goodput_share", "rejected_share", "hit_rate")
SAID = ("ttft_p50_ms", "makespan_p50_s", "output_tokens_per_s", "computed_prompt_tokens")
MOST_LINES = 8
MOST_SAID = 6
"""Of an axis with more values the first and the last are said."""


def sweep_page(folder: Path) -> str:
    """The page of what a sweep in `folder` has made so far. Raises UsageError."""
    cells = read_cells(folder)
    if not cells:
        raise UsageError(f"no run of the sweep {folder} came to its end: make some first")
    usable = [cell for cell in cells if cell.valid]
    name = str(read_object(folder / SWEEP_JSON).get("definition", {}).get("name", folder.name))
    axes = axes_of(usable)
    told = [*_counted(cells, usable), *(said for axis in axes for said in sentences(axis, usable))]
    return render(
        PageContent(
            title=name,
            sections=(Section(name, str(folder), _begun(cells), sentences=tuple(told)),),
            pictures=[_picture(axis, values, usable) for axis, values in axes.items()],
            tables=[cells_table(usable), _faults_table(cells), _options_table(cells)],
        )
    )


def axes_of(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """The options in which cells differ, with their values in the order of their size or of their
    appearance in names."""
    found: dict[str, list[str]] = {}
    for axis in dict.fromkeys(name for cell in cells for name in cell.axes if name != "seed"):
        values = list(dict.fromkeys(cell.axes.get(axis, "") for cell in cells))
        given = [value for value in values if value]
        if len(given) > 1 and is_numeric(given):
            values = given  # cells without the option have no place between its numbers
        if len(values) > 1:
            found[axis] = sorted(values, key=float if is_numeric(values) else str)
    return found


def _alike(cell: Cell, axis: str) -> tuple[int, tuple[tuple[str, str], ...]]:
    others = (each for each in cell.axes.items() if each[0] not in (axis, "seed"))
    return cell.repeat, tuple(others)


def sentences(axis: str, cells: Sequence[Cell]) -> Iterator[str]:
    """What the values of an axis did to each of the main figures: medians of the runs that differ
    from those of other values in it alone."""
    values = axes_of(cells)[axis]
    has = {value: {_alike(cell, axis) for cell in _at(cells, axis, value)} for value in values}
    common = set.intersection(*has.values())
    alike = [cell for cell in cells if _alike(cell, axis) in common]
    for name in SAID:
        medians = {value: _median(alike, axis, value, name) for value in values}
        known = {value: each for value, each in medians.items() if each is not None}
        if len(known) == len(values):
            shown = list(known.items())
            shown = shown if len(shown) <= MOST_SAID else [shown[0], shown[-1]]
            said = listed([f"{_figure(name, each)} at {value}" for value, each in shown])
            title = f"{SHOWN[name][0].upper()}{SHOWN[name][1:]}"
            yield f"{title} by {axis}: {said} (medians of runs that differ in it alone)."


def _median(cells: Sequence[Cell], axis: str, value: str, name: str) -> float | None:
    found = _known(_at(cells, axis, value), name)
    return median(found) if found else None


def _known(cells: Sequence[Cell], name: str) -> list[float]:
    """Tokens of a request: a faster engine is sent more of them in the same time."""
    found = [(cell.figures[name], cell.figures["requests"]) for cell in cells]
    if name == "computed_prompt_tokens":
        return [value / count for value, count in found if value is not None and count]
    return [value for value, _ in found if value is not None]


def _figure(name: str, value: float) -> str:
    return percent(value) if name in SHARES else number(value)


def _counted(cells: Sequence[Cell], usable: Sequence[Cell]) -> Iterator[str]:
    plans = len({cell.cell_id for cell in cells})
    yield f"{counted(len(cells), 'run')} of {counted(plans, 'cell')} came to their end."
    if left := len(cells) - len(usable):
        said = "decides nothing and is" if left == 1 else "decide nothing and are"
        yield f"{counted(left, 'run')} {said} left out here; the tables say why."


def _begun(cells: Sequence[Cell]) -> str:
    known = (cell.started_unix_s for cell in cells)
    return utc(min((each for each in known if isinstance(each, int | float)), default=None))


def _picture(axis: str, values: Sequence[str], cells: Sequence[Cell]) -> Picture:
    names = [name for name in SHOWN if _known(cells, name)]
    lines, is_whole = _lines(axis, cells)
    panels = {
        SHOWN[name]: [
            AxisLine(line, {v: _known(_at(found, axis, v), name) for v in values})
            for line, found in lines.items()
        ]
        for name in names
    }
    more = "" if is_whole else " Runs that differ in other options are taken together."
    caption = (
        f"Over {axis}: medians of the runs, with whiskers from the lowest to the highest.{more}"
    )
    return picture(f"over-{axis}", over_axis(axis, values, panels), caption, wide=True)


def _at(cells: Sequence[Cell], axis: str, value: str) -> list[Cell]:
    return [cell for cell in cells if cell.axes.get(axis) == value]


def _lines(axis: str, cells: Sequence[Cell]) -> tuple[dict[str, list[Cell]], bool]:
    """One for each combination of the other axes, or of one of them where these are too many, and
    whether it is all of them."""
    values = axes_of(cells)
    others = [name for name in values if name != axis]
    kept = others
    while kept:
        named: dict[str, list[Cell]] = {}
        ordered = {name: ["", *filter(None, values[name])] for name in kept}
        for cell in sorted(cells, key=partial(_place, ordered)):
            name = ", ".join(f"{key} {cell.axes.get(key) or '-'}" for key in kept)
            named.setdefault(name, []).append(cell)
        if len(named) <= MOST_LINES:
            return named, kept == others
        kept = kept[:-1]
    return {"": list(cells)}, not others


def _place(ordered: Mapping[str, list[str]], cell: Cell) -> list[int]:
    """Where it stands among others: without an option, before all of its values."""
    return [values.index(cell.axes.get(name, "")) for name, values in ordered.items()]


def cells_table(cells: Sequence[Cell]) -> Table:
    """A row for each cell: medians of its runs."""
    names = [name for name in SHOWN if _known(cells, name)]
    grouped: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.cell_id):
        grouped.setdefault(cell.cell_id, []).append(cell)
    rows = []
    for cell_id, runs in grouped.items():
        found = [_known(runs, name) for name in names]
        figures = [_figure(n, median(f)) if f else "-" for n, f in zip(names, found, strict=True)]
        rows.append(TableRow(axes_title(runs[0].axes) or cell_id, (str(len(runs)), *figures)))
    columns = ("cell", "runs", *(SHOWN[name] for name in names))
    return Table("Cells", columns, tuple(rows), note=f"Medians of the runs of a cell. {TAILS}")


def _faults_table(cells: Sequence[Cell]) -> Table:
    rows = [TableRow(cell.run.name, (cell.fault,)) for cell in cells if cell.fault]
    return Table("Runs that decide nothing", ("run", "why"), tuple(rows), numbers=False)


def _options_table(cells: Sequence[Cell]) -> Table:
    options = {name: text for cell in cells for name, text in cell.options.items()}
    rows = [TableRow(name, (text,)) for name, text in options.items()]
    return Table("Options of all cells", ("option", "value"), tuple(rows), numbers=False)
