"""Figures of a question asked for, in tables and in groups of bars."""

from collections.abc import Callable, Sequence
from textwrap import fill

from matplotlib.figure import Figure

from dashboards.figures.style import (
    SERIES_COLOURS,
    finish,
    legend_below,
    new_axes,
    new_figure,
    plain,
)
from dashboards.studies.answer import MarkdownTable
from kv_tiers.trials import NetworkFigures

LETTERS_ACROSS = 96
"""Of names below groups of bars, on one line."""
Write = Callable[[float], str]
PivotColumn = tuple[str, str, str, Write]
"""Its title, setting, measure and how it is written."""


def need(rows: NetworkFigures, subject: str, setting: str, measure: str) -> float:
    """A figure that is there. Raises KeyError."""
    if (found := rows.value(subject, setting, measure)) is None:
        raise KeyError(f"{measure} of {subject}, {setting}")
    return found


def rows_of(
    rows: NetworkFigures, subjects: Sequence[str], setting: str, measure: str
) -> list[float]:
    """A figure of several subjects."""
    return [need(rows, subject, setting, measure) for subject in subjects]


def pivot(rows: NetworkFigures, first: str, columns: Sequence[PivotColumn]) -> MarkdownTable:
    """A row for each subject; a column is its title, setting, measure and how it is written."""
    lines = []
    for subject in rows.subjects():
        found = [(rows.value(subject, at, measure), write) for _, at, measure, write in columns]
        if any(value is not None for value, _ in found):
            cells = ("" if value is None else write(value) for value, write in found)
            lines.append((f"`{subject}`", *cells))
    return MarkdownTable((first, *(title for title, *_ in columns)), tuple(lines))


def by_setting(
    rows: NetworkFigures, first: str, settings: Sequence[str], measure: str, write: Write
) -> MarkdownTable:
    """A row for each setting and a column for each subject, of one measure."""
    subjects = rows.subjects()
    lines = []
    for each in settings:
        found = (rows.value(subject, each, measure) for subject in subjects)
        lines.append((each, *("" if value is None else write(value) for value in found)))
    return MarkdownTable((first, *(f"`{subject}`" for subject in subjects)), tuple(lines))


def bars(
    rows: NetworkFigures, settings: Sequence[str], measure: str, title: str, scale: float
) -> Figure:
    """Groups by setting, a bar for each subject."""
    figure = new_figure(9.0, 3.6)
    axes = new_axes(figure, title)
    subjects = rows.subjects()
    width = 0.8 / len(subjects)
    for at, subject in enumerate(subjects):
        values = [scale * (rows.value(subject, each, measure) or 0.0) for each in settings]
        places = [place + (at - (len(subjects) - 1) / 2) * width for place in range(len(settings))]
        axes.bar(places, values, width * 0.9, color=SERIES_COLOURS[at], label=subject)
    finish(axes)
    letters = LETTERS_ACROSS // len(settings)
    axes.set_xticks(range(len(settings)), [plain(fill(each, letters)) for each in settings])
    legend_below(figure)
    return figure


def three_digits(value: float) -> str:
    """Behind the point."""
    return f"{value:.3f}"
