"""A comparison as JSON, as JUnit XML, as Markdown, and as a table on the terminal."""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.compare import wording
from loadgen.compare.comparison import ComparedMetric, Comparison
from loadgen.compare.gate import Outcome, junit
from loadgen.compare.judgement import LimitJudgement
from loadgen.compare.pairs import Agreement


def to_json(comparison: Comparison) -> str:
    """Changes and shares as fractions (0.1 is 10 %); null where a bound is open or not known."""
    content = {
        "base": comparison.base,
        "new": comparison.new,
        "confidence_level": comparison.row_level,
        "gate_confidence_level": comparison.level,
        "exact_counts": [asdict(each) for each in comparison.counts],
        "metrics": [_row(row) for row in comparison.rows],
        "gate": [_judgement(judgement) for judgement in comparison.judgements],
        "exit_code": comparison.exit_code,
        "notes": comparison.remarks,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _row(row: ComparedMetric) -> dict[str, Any]:
    return {
        "metric": row.statistic.name,
        "unit": "1" if row.statistic.metric.form == "share" else row.statistic.metric.unit,
        "base": _number(row.base),
        "new": _number(row.new),
        "samples": {"base": row.samples[0], "new": row.samples[1]},
        "change": row.change and row.change.to_json(),
        "pairs": _pairs(row.agreement),
        "explained_by_spread": _number(row.explained_by),
        "verdict": row.verdict,
    }


def _pairs(agreement: Agreement | None) -> dict[str, int | str] | None:
    if agreement is None:
        return None
    return {
        "lower": agreement.lower,
        "higher": agreement.higher,
        "of": agreement.count,
        "unit": agreement.unit,
    }


def _judgement(judgement: LimitJudgement) -> dict[str, Any]:
    return {
        "limit": judgement.limit.text,
        "metric": judgement.limit.statistic.name,
        "kind": judgement.limit.kind,
        "bound": judgement.limit.bound,
        "found": judgement.interval and judgement.interval.to_json(),
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "smallest_seen": _number(judgement.seen),
        "times_as_long": judgement.times,
        "repeats": judgement.repeats,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


SUITE = "kvswarm compare"


def to_junit(comparison: Comparison) -> str:
    """Limits by what became of them; metrics alone never fail."""
    limits = [(j.limit.text, j.outcome, wording.finding(j)) for j in comparison.judgements]
    metrics: list[tuple[str, Outcome, str]] = [
        (
            row.statistic.name,
            "passed",
            f"{wording.change(row)}; interval {wording.bounds(row)}; {wording.verdict(row)}",
        )
        for row in comparison.rows
    ]
    return junit(SUITE, limits or metrics, _system_out(comparison))


def _system_out(comparison: Comparison) -> str:
    counted = wording.counts(comparison.counts)
    lines = [("base", *comparison.base), ("new", *comparison.new)]
    lines += [("counted", counted)] if counted else []
    lines.append(("note", *comparison.remarks))
    return "\n".join(f"{line[0]}: {wording.plain(each)}" for line in lines for each in line[1:])


_SPECIAL = "\\`*_{}[]<>#|!&~$"


def to_markdown(comparison: Comparison) -> str:
    """Two tables and the remarks; whatever comes from outside is escaped."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"base: {_names(comparison.base)}  "
    yield f"new: {_names(comparison.new)}\n"
    level = wording.confidence(comparison.row_level)
    if counted := wording.counts(comparison.counts):
        yield f"{counted}\n"
    yield _line(("metric", "base", "new", "change", f"{level} interval", "verdict"))
    yield "|---|---:|---:|---:|---:|---|"
    for row in comparison.rows:
        yield _line((f"`{row.statistic.name}`", *wording.cells(row)))
    if comparison.judgements:
        yield "\n" + _line(("limit", "gate", "found"))
        yield "|---|---|---|"
        for judgement in comparison.judgements:
            limit = f"`{judgement.limit.text}`"
            yield _line((limit, f"**{judgement.outcome}**", wording.finding(judgement)))
    for remark in comparison.remarks:
        yield f"\nNote: {escaped(remark)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(escaped, names))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(name: str) -> str:
    """A name from outside as nothing but text."""
    return "".join(f"\\{each}" if each in _SPECIAL else each for each in wording.plain(name))


COLOURS = {
    "better": "green",
    "worse": "red",
    "passed": "green",
    "broken": "red",
    "undecided": "yellow",
}
WIDTH = 120


def to_table(comparison: Comparison, colour: bool = False, width: int | None = None) -> str:
    """Text with aligned columns; names are printed as they are, never as markup. `width` is that
    of a terminal, None where lines may be as long as they are."""
    out = io.StringIO()
    console = Console(
        file=out,
        highlight=False,
        markup=False,
        force_terminal=colour,
        width=width or WIDTH,
        soft_wrap=width is None,
    )
    for side, names in (("base", comparison.base), ("new", comparison.new)):
        console.print(Text(f"{side:5}{', '.join(map(wording.plain, names))}"))
    console.print()
    if counted := wording.counts(comparison.counts):
        console.print(Text(f"{counted}\n"))
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
    for title in ("base", "new", "change", f"{wording.confidence(comparison.row_level)} interval"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for row in comparison.rows:
        *shown, verdict = wording.cells(row)
        table.add_row(row.statistic.name, *shown, Text(verdict, COLOURS.get(row.verdict, "")))
    return table


def _judgements(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("limit", "gate", "found"):
        table.add_column(title)
    for judgement in comparison.judgements:
        outcome = Text(judgement.outcome, COLOURS[judgement.outcome])
        table.add_row(judgement.limit.text, outcome, wording.finding(judgement))
    return table
