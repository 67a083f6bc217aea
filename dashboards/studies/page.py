"""The page of a study: Markdown with pictures and a table of all cells beside it."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from dashboards.figures.style import save_svg
from dashboards.studies.answer import Answer
from dashboards.studies.cell import Cells
from dashboards.studies.measured import Measured
from dashboards.studies.overview import Entry, Summary
from dashboards.studies.study import Plan, Question
from dashboards.studies.wording import listed
from loadgen.sweep.matrix import cells_of

CELLS_CSV = "cells.csv"


def answers(plan: Plan, cells: Cells) -> list[tuple[Question, Answer | None]]:
    """Each question with its answer, None where no cell of use was measured for it."""
    found: list[tuple[Question, Answer | None]] = []
    for question in plan.study.questions:
        part = cells.of(*question.parts)
        found.append((question, question.answer(part) if len(part.counted) else None))
    return found


def write_page(plan: Plan, cells: Cells, measured: Measured, folder: Path) -> Path:
    """Write the page, its pictures and its summary into a folder that is there; returns the path
    of the page, which is named as the study."""
    found, name = answers(plan, cells), plan.study.name
    text = "\n\n".join(_page(plan, cells, measured, found, name))
    for _, answer in found:
        for picture in answer.pictures if answer is not None else ():
            save_svg(picture.figure, folder / f"{name}-{picture.name}.svg")
    page = folder / f"{name}.md"
    page.write_text(f"{text}\n", encoding="utf-8")
    _summary(plan, measured, found).write(folder)
    return page


def _summary(
    plan: Plan, measured: Measured, found: Sequence[tuple[Question, Answer | None]]
) -> Summary:
    name = plan.study.name
    entries = [
        Entry(
            question.key,
            answer.question,
            answer.sentences,
            tuple((f"{name}-{each.name}.svg", each.shows) for each in answer.pictures),
        )
        for question, answer in found
        if answer is not None
    ]
    return Summary(name, plan.study.title, **asdict(measured), entries=tuple(entries))


def _page(
    plan: Plan,
    cells: Cells,
    measured: Measured,
    found: Sequence[tuple[Question, Answer | None]],
    name: str,
) -> Iterator[str]:
    yield f"# {plan.study.title}"
    yield plan.study.introduction
    yield f"```sh\n{measured.command}\n```"
    yield (
        f"Measured {measured.when} on {measured.machine}, {measured.versions}."
        f" Every run is a row of [{name}-{CELLS_CSV}]({name}-{CELLS_CSV})."
    )
    yield _how_to_read(plan)
    yield from _not_measured(plan, cells)
    yield "## In short"
    yield "\n".join(_in_short(found))
    for question, answer in found:
        if answer is not None:
            yield from _section(plan, question, answer, name)


def _how_to_read(plan: Plan) -> str:
    intervals = (
        "There is one run of each cell: intervals of 95 % come from the requests of these runs and"
        " do not know how much identical runs differ."
        if plan.repeats == 1
        else f"Each cell was run {plan.repeats} times, each time with another `--seed` and so with"
        " other requests; intervals of 95 % come from how these runs differ, where the text"
        " says nothing else."
    )
    return (
        f"{intervals} Where an interval holds no difference too, the text says that there is no"
        " evidence of one. Tables give medians over the runs of a cell, with the range where there"
        " are several. Every cell began with empty caches. All sentences below are made from the"
        " figures by rules, none is written by hand."
    )


def _not_measured(plan: Plan, cells: Cells) -> Iterator[str]:
    lines = [
        f"- {name}: {count} {'run is' if count == 1 else 'runs are'} missing"
        for name, count in plan.missing(cells).items()
    ]
    for cell in cells:
        if cell.fault:
            of = "times of " if cell.late else ""
            lines.append(f"- {of}{cell.run.name}: {cell.fault}")
    if lines:
        yield "**Not all of it was measured**, and answers are made without these:"
        yield "\n".join(dict.fromkeys(lines))


def _in_short(found: Sequence[tuple[Question, Answer | None]]) -> Iterator[str]:
    for question, answer in found:
        if answer is None:
            yield f"- *{listed(question.parts)}*: not measured."
        else:
            yield f"- [{answer.question}](#{question.key}) {answer.short}"


def _section(plan: Plan, question: Question, answer: Answer, name: str) -> Iterator[str]:
    yield f'<a id="{question.key}"></a>\n## {answer.question}'
    yield f"**{answer.short}**"
    if answer.sentences[1:]:
        yield "\n".join(f"- {sentence}" for sentence in answer.sentences[1:])
    for picture in answer.pictures:
        yield f"![{picture.shows}]({name}-{picture.name}.svg)"
    for table in answer.tables:
        yield table.markdown
    yield _sources(plan, question)


def _sources(plan: Plan, question: Question) -> str:
    links = [
        f"[{part}.toml](../../dashboards/studies/definitions/{plan.name}/{part}.toml)"
        for part in question.parts
    ]
    first = plan.parts[question.parts[0]]
    words = ["kvswarm", "run", first.locustfile, *cells_of(first)[-1].words(0)]
    return (
        f"The cells are defined in {listed(links)}. One of them by hand:\n\n"
        f"```sh\n{shlex.join(words)}\n```"
    )
