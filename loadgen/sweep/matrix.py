"""From a definition to its cells: every combination of the axes, and those named one by one."""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.sweep.definition import Definition, Options, as_words, option_texts, text_of

LONGEST_ID = 80
UNSAFE = re.compile(r"[^A-Za-z0-9.+]+")


def axes_title(axes: Mapping[str, str]) -> str:
    """`users 8, zipf 1.1`: what tells a cell from others; empty where it is the only one."""
    return ", ".join(f"{key} {text}" for key, text in axes.items() if text)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One cell, the same in all repeats. `options` are all it has; `axes` those that tell it from
    others, as text."""

    cell_id: str
    options: Options
    axes: Mapping[str, str]

    def words(self, seed: int) -> list[str]:
        """Its options as words of a command line, with the seed of a repeat."""
        own = {key: value for key, value in self.options.items() if key != "seed"}
        words = [word for key, value in own.items() for word in as_words(key, value)]
        return [*words, f"--seed={seed}"]

    def seed(self, repeat: int) -> int:
        """The workload's seed in a repeat, from 1."""
        first = self.options.get("seed", 0)
        assert isinstance(first, int)
        return first + repeat - 1

    @property
    def fixed(self) -> dict[str, str]:
        """The options that all cells have, as text."""
        return {
            key: text for key, text in option_texts(self.options).items() if key not in self.axes
        }

    @property
    def title(self) -> str:
        """What tells it from others, for a person."""
        return axes_title(self.axes)


def cells_of(definition: Definition) -> list[CellPlan]:
    """All cells in the order of the file. Raises UsageError for two that are alike, and where
    none is left."""
    cells: dict[str, CellPlan] = {}
    known = set()
    for table, options in _combinations(definition):
        cell = _cell(definition, options)
        said = frozenset((key, as_words(key, options[key])) for key in options)
        if said in known:
            raise definition.error(table, "", f"the cell {cell.title} is there twice")
        if cell.cell_id in cells:
            cell = replace(cell, cell_id=f"{cell.cell_id}-{_mark(cell.axes, options)}")
        cells[cell.cell_id] = cell
        known.add(said)
    if not cells:
        raise definition.error("skip", "", "leaves no cell: leave out fewer")
    return list(cells.values())


def _combinations(definition: Definition) -> Iterator[tuple[str, Options]]:
    if definition.axes or not definition.cells:
        for values in itertools.product(*definition.axes.values()):
            own: Options = dict(zip(definition.axes, values, strict=True))
            if not any(each.items() <= own.items() for each in definition.skip):
                yield "axes", {**definition.options, **own}
    for number, own in enumerate(definition.cells, 1):
        yield f"cells.{number}", {**definition.options, **own}


def _cell(definition: Definition, options: Options) -> CellPlan:
    own = list(definition.axes)
    own += dict.fromkeys(key for cell in definition.cells for key in cell if key not in own)
    axes = {key: text_of(key, options[key]) if key in options else "" for key in own}
    return CellPlan(_cell_id(axes, options), options, axes)


def _cell_id(axes: Mapping[str, str], options: Options) -> str:
    """Readable, fit for a folder, and the same whatever other cells there are: what cannot be read
    back from it is told apart by a hash."""
    parts = []
    for key, text in axes.items():
        if text:
            is_number = text.replace(".", "").replace("-", "").isdigit()
            parts.append(f"{key}-{text}" if is_number or text in ("true", "false") else text)
    plain = "_".join(parts) or "cell"
    safe = "_".join(UNSAFE.sub("-", part).strip("-.") for part in parts) or "cell"
    if plain == safe and len(safe) <= LONGEST_ID:
        return safe
    return f"{safe[:LONGEST_ID]}-{_mark(axes, options)}"


def _mark(axes: Mapping[str, str], options: Options) -> str:
    words = [word for key in axes if key in options for word in as_words(key, options[key])]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:6]


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One run: a cell in one of its repeats, from 1."""

    cell: CellPlan
    repeat: int

    @property
    def name(self) -> str:
        """The folder of its run."""
        return f"{self.cell.cell_id}-r{self.repeat}"

    @property
    def seed(self) -> int:
        """Of its workload."""
        return self.cell.seed(self.repeat)


@dataclass(frozen=True, slots=True)
class CellEngine:
    """What a cell runs on. Cells whose engines are equal share a start; a host of others is no
    start of ours."""

    label: str
    is_ours: bool
    settings: Hashable


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is made on one start of an engine."""

    engine: CellEngine
    steps: Sequence[SweepStep]


def stretches(
    definition: Definition, cells: Sequence[CellPlan], engine_of: Callable[[CellPlan], CellEngine]
) -> list[Stretch]:
    """Everything in the order in which it is made; the same for the same definition.

    `per-repeat`: each repeat is a pass through all engines in an order of its own. `once`: one
    pass, and each engine makes all repeats, one after the other.
    """
    dice = random.Random(definition.seed)
    groups: dict[CellEngine, list[CellPlan]] = {}
    for cell in cells:
        groups.setdefault(engine_of(cell), []).append(cell)
    repeats = range(1, definition.repeats + 1)
    passes = [list(repeats)] if definition.engine_starts == "once" else [[n] for n in repeats]
    found = []
    for numbers in passes:
        for engine in dice.sample(list(groups), len(groups)):
            own = groups[engine]
            steps = [SweepStep(cell, n) for n in numbers for cell in dice.sample(own, len(own))]
            found.append(Stretch(engine, steps))
    return found
