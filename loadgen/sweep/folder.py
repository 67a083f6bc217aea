"""The directory of a sweep: what it is, its cells, and what was set aside."""

import hashlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.runs.directory import check_directory
from loadgen.runs.json_file import malformed, read_object, write_json
from loadgen.runs.machine import machine, versions
from loadgen.sweep.definition import Definition, option_texts
from loadgen.sweep.matrix import CellEngine, CellPlan, Stretch, SweepStep
from loadgen.sweep.table import CELLS, MadeCell, read_made_cell

SWEEP_JSON = "sweep.json"
ASIDE, ENGINES = "aside", "engines"
FIXED = ("name", "locustfile", "seed", "keep_cache", "engine_starts")


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """`path` need not exist."""

    path: Path

    def run(self, step: SweepStep) -> Path:
        """Where the run of a step is or will be."""
        return self.path / CELLS / step.name

    def made(self, step: SweepStep) -> MadeCell | None:
        """What is known of a step that came to its end and need not be made again."""
        made = read_made_cell(self.run(step))
        return made if made is not None and made.is_whole else None

    def made_cells(self) -> list[MadeCell]:
        """All that came to their end, with whatever exit code."""
        found = (read_made_cell(run) for run in sorted((self.path / CELLS).glob("*/")))
        return [made for made in found if made is not None]

    def checked(self, definition: Definition, cells: Sequence[CellPlan]) -> list[CellPlan]:
        """Those cells, by the names that they have here. Raises UsageError where another sweep is
        kept, or nothing can be written. More repeats, and more cells beside the same ones, are the
        same sweep."""
        check_directory(self.path, SWEEP_JSON, "study.json")
        kept = read_object(self.path / SWEEP_JSON)
        if not kept:
            if (self.path / CELLS).exists():
                raise malformed(self.path / SWEEP_JSON, "it is missing beside cells")
            return list(cells)
        try:
            cells = _by_kept_names(kept["cells"], cells)
            difference = _difference(kept, describe(definition, cells))
        except (KeyError, TypeError, AttributeError) as error:
            raise malformed(self.path / SWEEP_JSON, f"{error} is missing or wrong") from None
        if difference:
            raise UsageError(
                f"{self.path} holds another sweep ({difference}): keep it and begin anew with"
                f" {definition.command(Path(f'{self.path}-2'))}"
            )
        return cells

    def check_places(self, order: Sequence[Stretch]) -> None:
        """Raise UsageError where a cell was made elsewhere: the environment and Locust's files say
        where too."""
        kept = read_object(self.path / SWEEP_JSON).get("places") or {}
        for cell_id, place in _places(order).items():
            if (was := kept.get(cell_id, place)) != place:
                raise UsageError(
                    f"{self.path} holds {cell_id} of {was}, which is of {place} now: give another"
                    " --out"
                )

    def check_heard(self, heard: Mapping[str, str]) -> None:
        """Raise UsageError where what is said of the load beside the definition has changed."""
        kept = read_object(self.path / SWEEP_JSON).get("heard") or {}
        for name, value in heard.items():
            if (was := kept.get(name, value)) != value:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{self.path} holds cells with {flag} {was or 'unset'}, which is"
                    f" {value or 'unset'} now, by the environment or a configuration file: set it"
                    " as it was, or give another --out"
                )

    @property
    def changed_versions(self) -> str:
        """Packages that are not those the sweep was made with so far, empty where all are."""
        kept, now = read_object(self.path / SWEEP_JSON).get("versions") or {}, versions()
        return ", ".join(
            f"{name} {was} is now {now.get(name, 'gone')}"
            for name, was in kept.items()
            if now.get(name) != was
        )

    def open(
        self,
        definition: Definition,
        cells: Sequence[CellPlan],
        order: Sequence[Stretch],
        heard: Mapping[str, str],
    ) -> None:
        """Note what is being made, and what is `heard` of the load beside its definition."""
        kept = read_object(self.path / SWEEP_JSON)
        self.path.mkdir(parents=True, exist_ok=True)
        facts = {
            **describe(definition, cells),
            "places": _places(order),
            "heard": dict(heard),
            "order": [[step.name for step in stretch.steps] for stretch in order],
            "versions": versions(),
            "machine": machine(),
            "begun_unix_s": kept.get("begun_unix_s", time.time()),
        }
        write_json(self.path / SWEEP_JSON, facts)
        (self.path / CELLS).mkdir(exist_ok=True)  # last: cells without the sweep are refused

    def set_aside(self, step: SweepStep) -> Path | None:
        """Move what there is of a run that is made again; where it is now, None for nothing."""
        run, aside = self.run(step), self.path / ASIDE
        if not run.exists():
            return None
        aside.mkdir(exist_ok=True)
        places = (aside / f"{step.name}-{number}" for number in itertools.count(1))
        return run.rename(next(place for place in places if not place.exists()))

    def new_run(self, step: SweepStep, logs: Path) -> Path:
        """An empty directory for the run of a step, with a link to the logs of its engine."""
        run = self.run(step)
        run.mkdir()
        if logs.is_dir():
            (run / "engine").symlink_to(Path("..", "..", *logs.relative_to(self.path).parts))
        return run

    def new_logs(self, engine: CellEngine) -> Path:
        """Where the next start of an engine logs; not made yet."""
        starts = self.path / ENGINES
        return starts / f"{1 + len(list(starts.glob('*'))):03d}-{engine.label}"


def describe(definition: Definition, cells: Sequence[CellPlan]) -> dict[str, Any]:
    """What `sweep.json` says of a sweep before anything of it is made."""
    content = definition.as_json
    text = json.dumps(content, sort_keys=True)
    return {
        "definition": content,
        "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16],
        "cells": {cell.cell_id: option_texts(cell.options) for cell in cells},
    }


def _by_kept_names(
    kept: Mapping[str, Mapping[str, str]], cells: Sequence[CellPlan]
) -> list[CellPlan]:
    """One cell more may have another option tell cells apart, and so in their names."""
    names = {frozenset(texts.items()): name for name, texts in kept.items()}
    found = (names.get(frozenset(option_texts(cell.options).items())) for cell in cells)
    return [
        replace(cell, cell_id=name or cell.cell_id) for cell, name in zip(cells, found, strict=True)
    ]


def _places(order: Sequence[Stretch]) -> dict[str, str]:
    return {step.cell.cell_id: each.engine.label for each in order for step in each.steps}


def _difference(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In what a sweep is not the kept one, empty where it is or only adds to it."""
    was, now = kept["definition"], wanted["definition"]
    for name in FIXED:
        if was[name] != now[name]:
            return f"{name} was {was[name]}, is {now[name]}"
    if was["repeats"] > now["repeats"]:
        return f"it had {was['repeats']} repeats, not {now['repeats']}"
    for key in {**was["options"], **now["options"]}:
        if was["options"].get(key) != now["options"].get(key):
            return f"{key} was {was['options'].get(key)}, is {now['options'].get(key)}"
    for cell_id, options in kept["cells"].items():
        if wanted["cells"].get(cell_id) != options:
            return f"it had the cell {cell_id}"
    return ""
