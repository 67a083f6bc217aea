"""Markdown: tables, sections, and a text between two markers of a page."""

from collections.abc import Iterable, Sequence
from statistics import median

BEGIN, END = "<!-- bench-scheduler:begin -->", "<!-- bench-scheduler:end -->"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and the others numbers; empty without lines."""
    body = [f"| {' | '.join(line)} |" for line in lines]
    rule = f"|---|{'---:|' * (len(head) - 1)}"
    return "\n".join([f"| {' | '.join(head)} |", rule, *body]) if body else ""


def section(title: str, note: str, body: str) -> str:
    """A titled table with a note; empty without a table."""
    return f"### {title}\n\n{note}\n\n{body}" if body else ""


def spread(values: Sequence[float]) -> str:
    """The median, and the range in brackets."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def insert(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with the text between its markers. Raises ValueError without the markers."""
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} and {end} after it")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
