"""A comparison as Markdown, for a comment on a change."""

from collections.abc import Iterator, Sequence

from loadgen.compare import wording
from loadgen.compare.comparison import Comparison

_SPECIAL = "\\`*_{}[]<>#|!&~$"


def to_markdown(comparison: Comparison) -> str:
    """Two tables and the remarks; whatever comes from outside is escaped."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"base: {_names(comparison.base)}  "
    yield f"new: {_names(comparison.new)}\n"
    level = wording.confidence(comparison.level)
    yield _line(("metric", "base", "new", "change", f"{level} interval", "verdict"))
    yield "|---|---:|---:|---:|---:|---|"
    for row in comparison.rows:
        figures = (wording.figure(row.statistic, value) for value in (row.base, row.new))
        shown = (*figures, wording.change(row), wording.bounds(row), row.verdict)
        yield _line((f"`{row.statistic.name}`", *shown))
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
