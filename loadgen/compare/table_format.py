"""A comparison on the terminal."""

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.compare import wording
from loadgen.compare.comparison import Comparison

COLOURS = {
    "better": "green",
    "worse": "red",
    "passed": "green",
    "broken": "red",
    "undecided": "yellow",
}
WIDTH = 120


def to_table(comparison: Comparison, colour: bool = False) -> str:
    """Text with aligned columns; names are printed as they are, never as markup."""
    out = io.StringIO()
    console = Console(
        file=out, highlight=False, markup=False, force_terminal=colour, width=WIDTH, soft_wrap=True
    )
    for side, names in (("base", comparison.base), ("new", comparison.new)):
        console.print(Text(f"{side:5}{', '.join(map(wording.plain, names))}"))
    console.print()
    console.print(_rows(comparison))
    if comparison.judgements:
        console.print()
        console.print(_judgements(comparison))
    for remark in comparison.remarks:
        console.print(Text(f"\nnote: {wording.plain(remark)}"), end="")
    return out.getvalue().rstrip("\n") + "\n"


def _rows(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for title in ("base", "new", "change", f"{wording.confidence(comparison.level)} interval"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for row in comparison.rows:
        table.add_row(
            row.statistic.name,
            wording.figure(row.statistic, row.base),
            wording.figure(row.statistic, row.new),
            wording.change(row),
            wording.bounds(row),
            Text(row.verdict, COLOURS.get(row.verdict, "")),
        )
    return table


def _judgements(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("limit", "gate", "found"):
        table.add_column(title)
    for judgement in comparison.judgements:
        outcome = Text(judgement.outcome, COLOURS[judgement.outcome])
        table.add_row(judgement.limit.text, outcome, wording.finding(judgement))
    return table
