"""The page: everything it says, put together and rendered as HTML."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dashboards.figures.requests import renumbered
from dashboards.report.comparisons import Pair, pair_table, pairs, verdict
from dashboards.report.figures_of import RunFigures, figures_of
from dashboards.report.gallery import Picture, pictures
from dashboards.report.health import Check, checks, faults
from dashboards.report.run_files import ReportedRun, read_files
from dashboards.report.tables import (
    Table,
    command_lines,
    configuration_table,
    contexts_table,
    engine_table,
    errors_table,
    gate_table,
    metrics_table,
    outcomes_table,
    steady_table,
)
from dashboards.report.verdict import sentences
from dashboards.report.wording import utc
from loadgen.compare.noise import Noise

MARK = '<meta name="generator" content="kvswarm report">'
"""What tells a report of ours from other files."""


@dataclass(frozen=True, slots=True)
class Section:
    """One run on the page, or what was made of many."""

    name: str
    path: str
    started: str = ""
    faults: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PageContent:
    """All that a page says. `verdicts` are the sentences of each comparison."""

    title: str
    sections: Sequence[Section]
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    verdicts: Sequence[Sequence[str]] = ()


def make_page(
    paths: Sequence[Path], vary: Collection[str] = ("target",), noise: Noise | None = None
) -> str:
    """A self-contained page about one run, or about several set against the first. The same files
    give the same page."""
    names = short_names(paths)
    runs = [read_files(path, name) for path, name in zip(paths, names, strict=True)]
    # A context has one number, and so one colour, in all runs.
    for run, requests in zip(runs, renumbered([run.drawn for run in runs]), strict=True):
        run.drawn = requests
    figures = {run.name: figures_of(run) for run in runs}
    compared = pairs(paths, names, vary, noise)
    return render(
        PageContent(
            title=names[0]
            if len(names) == 1
            else " against ".join((names[0], ", ".join(names[1:]))),
            sections=[_section(run, figures[run.name]) for run in runs],
            pictures=pictures(runs),
            tables=_tables(runs, figures, compared),
            verdicts=[list(verdict(pair)) for pair in compared],
        )
    )


def render(content: PageContent) -> str:
    """The page as HTML that needs nothing else."""
    environment = Environment(
        loader=PackageLoader("dashboards.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(
        title=content.title,
        mark=Markup(MARK),
        style=Markup(environment.get_template("page.css").render()),
        sections=content.sections,
        is_checked=any(each.checks for each in content.sections),
        verdicts=content.verdicts,
        pictures=_marked(content.pictures),
        tables=[table for table in content.tables if table.rows],
    )


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many parts before it as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _section(run: ReportedRun, figures: RunFigures) -> Section:
    found = checks(run, figures)
    return Section(
        run.name,
        str(run.path),
        utc(run.description.get("start_unix_s")),
        tuple(faults(run)),
        tuple(sentences(run, figures, found)),
        tuple(found),
        tuple(command_lines(run)),
    )


def _marked(found: Sequence[Picture]) -> list[dict[str, object]]:
    """The SVG is made here, and what comes from outside was escaped in it."""
    return [
        {"name": each.name, "svg": Markup(each.svg), "caption": each.caption, "wide": each.wide}
        for each in found
    ]


def _tables(
    runs: Sequence[ReportedRun], figures: dict[str, RunFigures], compared: Sequence[Pair]
) -> list[Table]:
    several = [pair_table(pair) for pair in compared]
    found = [
        *several,
        *(gate_table(run) for run in runs),
        metrics_table(figures),
        steady_table(runs, figures),
        engine_table(figures),
        outcomes_table(figures),
        *(errors_table(run) for run in runs),
        *(contexts_table(run) for run in runs),
        configuration_table(runs),
    ]
    return [table for table in found if table is not None]
