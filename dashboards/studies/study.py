"""A study: parts that are measured, questions that are answered from them."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from dashboards.studies.answer import StudyAnswer
from dashboards.studies.cell import COMPUTED, EACH_COMPUTED, Cells, StudyCell
from loadgen.errors import UsageError
from loadgen.runs.exit_code import SATURATED
from loadgen.sweep.definition import (
    Definition,
    Options,
    option_texts,
    read_definition,
    text_of,
)
from loadgen.sweep.matrix import CellPlan, cells_of
from loadgen.sweep.runner import ASSUMED_OVERHEAD_S, ASSUMED_START_S, spoken
from loadgen.sweep.table import Cell as MeasuredCell

CORPORA = "{corpora}"
"""In a definition: the folder where corpora of several sizes lie."""
QUICK, EVERY = "quick", "every"
"""The file of a study with what `--quick` makes less, and its table for all parts."""
ENGINE = ("target", "router", "replicas", "kv-tokens", "l1-gb", "engine-arg", "corpus")
"""Options for which another engine is started; so it is with and without a RAG service."""
SHARED = ("locustfile", "repeats", "seed", "keep_cache", "engine_starts")
"""What the parts of a study must have alike, to be measured as one sweep."""


@dataclass(frozen=True, slots=True)
class StudyQuestion:
    """`answer` gets the cells of these parts, of which the counts of at least one can be used."""

    key: str
    parts: tuple[str, ...]
    answer: Callable[[Cells], StudyAnswer]


@dataclass(frozen=True, slots=True)
class Study:
    """`name` is that of its command and of the folder with its definitions; `run_s` is how long a
    run without a time takes, with its begin and end, on two cores."""

    name: str
    title: str
    introduction: str
    questions: tuple[StudyQuestion, ...]
    run_s: float = 8.0


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The parts of a study, by name, as sweeps that can also be run alone."""

    study: Study
    quick: bool
    parts: Mapping[str, Definition]

    @property
    def name(self) -> str:
        """`task1` or `task1-quick`."""
        return f"{self.study.name}-quick" if self.quick else self.study.name

    def merged(self, corpora: Path) -> Definition:
        """All parts as one sweep, so that they share engine starts; a cell that several parts have
        is measured once. Raises UsageError where they cannot be one."""
        first = next(iter(self.parts.values()))
        for part in self.parts.values():
            for name in SHARED:
                if getattr(part, name) != getattr(first, name):
                    raise part.error("", name, f"must be as in the other parts of {self.name}")
        cells: list[Options] = []
        for plan in self._plans():
            options = {
                key: value.replace(CORPORA, str(corpora)) if isinstance(value, str) else value
                for key, value in plan.options.items()
            }
            if options not in cells:
                cells.append(options)
        alike = {
            key: value
            for key, value in cells[0].items()
            if all(each.get(key) == value for each in cells)
        }
        return Definition(
            name=self.name,
            options=alike,
            cells=[_own(cell, alike) for cell in cells],
            source=f"study {self.name}",
            **{name: getattr(first, name) for name in SHARED},
        )

    def cells(self, measured: Sequence[MeasuredCell]) -> Cells:
        """What was measured, each cell once for every part that it belongs to."""
        return Cells(tuple(self._cells(measured)))

    def missing(self, cells: Cells) -> dict[str, int]:
        """How many runs of each part there are not yet."""
        return {
            name: wanted - len(cells.of(name))
            for name, part in self.parts.items()
            if (wanted := part.repeats * len(cells_of(part))) > len(cells.of(name))
        }

    @property
    def repeats(self) -> int:
        """Runs of each cell."""
        return next(iter(self.parts.values())).repeats

    @property
    def runs(self) -> int:
        """Of all cells together, those that several parts have counted once."""
        return self.repeats * len(
            {_key(plan.options, tuple(plan.options)) for plan in self._plans()}
        )

    @property
    def engine_starts(self) -> int:
        """One for each cache and target, and where the sweep says so for each repeat."""
        engines = {
            (_key(plan.options, ENGINE), plan.options.get("labels") == "rag")
            for plan in self._plans()
        }
        return len(engines) if self.starts_once else self.repeats * len(engines)

    @property
    def starts_once(self) -> bool:
        """Whether one engine process serves several repeats of a cell."""
        return self.repeats > 1 and next(iter(self.parts.values())).engine_starts == "once"

    def _plans(self) -> Iterator[CellPlan]:
        return (plan for part in self.parts.values() for plan in cells_of(part))

    def _cells(self, measured: Sequence[MeasuredCell]) -> Iterator[StudyCell]:
        for name, part in self.parts.items():
            plans = [_settings(option_texts(plan.options)) for plan in cells_of(part)]
            for each in measured:
                settings = _settings({**each.options, **each.axes})
                if settings in plans:
                    figures = {**each.figures, EACH_COMPUTED: _each(each.figures)}
                    late = each.exit_code == SATURATED
                    yield StudyCell(
                        *(name, settings, each.repeat, each.run, figures, each.fault),
                        late=late,
                        cache_state=each.cache_state,
                    )


def _each(figures: Mapping[str, float | None]) -> float | None:
    computed, requests = figures.get(COMPUTED), figures.get("requests")
    return computed / requests if computed is not None and requests else None


def read_plan(study: Study, quick: bool) -> StudyPlan:
    """The definitions that come with kvswarm. Raises UsageError."""
    folder = Path(str(files("dashboards.studies"))) / "definitions" / study.name
    paths = [path for path in sorted(folder.glob("*.toml")) if path.stem != QUICK]
    parts = {path.stem: read_definition(path) for path in paths}
    unknown = {name for question in study.questions for name in question.parts} - set(parts)
    if unknown:
        raise UsageError(f"{folder} lacks {', '.join(sorted(unknown))}.toml: install kvswarm again")
    if quick:
        less = tomllib.loads((folder / f"{QUICK}.toml").read_text(encoding="utf-8"))
        parts = {
            name: _overlaid(part, less[EVERY], less.get(name, {})) for name, part in parts.items()
        }
    return StudyPlan(study, quick, parts)


def _overlaid(part: Definition, every: Mapping[str, Any], own: Mapping[str, Any]) -> Definition:
    """`own` stands over the part key by key, its cells in place of all; so does `every`."""
    options = {**part.options, **every.get("options", {}), **own.get("options", {})}
    tables = {"options": options}
    tables["axes"] = {**part.axes, **own.get("axes", {})}
    return replace(part, **{**every, **own, **tables})


def _key(options: Options, names: Sequence[str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, text_of(name, options[name])) for name in names if name in options)


def _own(cell: Options, alike: Options) -> Options:
    """What is not alike in all, with what is needed for an engine first: it names the runs."""
    order = [*(key for key in ENGINE if key in cell), *cell]
    return {key: cell[key] for key in dict.fromkeys(order) if key not in alike}


def _settings(texts: Mapping[str, str]) -> dict[str, str]:
    """By the names that cells have; of a corpus its folder's name, wherever it lies."""
    return {
        key.replace("-", "_"): Path(text).name if key == "corpus" else text
        for key, text in texts.items()
        if text and key != "seed"
    }


def estimate(plan: StudyPlan) -> str:
    """`21 runs, 5 engine starts, about 8 min on a quiet machine with two cores`."""
    return (
        f"{plan.runs} runs, {plan.engine_starts} engine starts, about {spoken(planned_s(plan))} on"
        " a quiet machine with two cores"
    )


def planned_s(plan: StudyPlan) -> float:
    """How long all runs and engine starts take on a quiet machine with two cores."""
    run_s = _asked_s(plan) or plan.study.run_s
    return plan.runs * run_s + plan.engine_starts * ASSUMED_START_S


def _asked_s(plan: StudyPlan) -> float | None:
    """Of a run with the longest `run-time` of the parts, which are written in seconds."""
    asked = [
        str(part.options.get("run-time", "")).removesuffix("s") for part in plan.parts.values()
    ]
    longest_s = max((float(each) for each in asked if each), default=None)
    return None if longest_s is None else longest_s + ASSUMED_OVERHEAD_S
