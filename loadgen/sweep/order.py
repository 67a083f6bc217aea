"""In which order the cells are made: shuffled against drift, with as few engine starts as asked."""

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from loadgen.sweep.definition import Definition
from loadgen.sweep.matrix import CellPlan


@dataclass(frozen=True, slots=True)
class Step:
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

    @property
    def words(self) -> list[str]:
        """Its options as words of a command line."""
        return self.cell.words(self.seed)


@dataclass(frozen=True, slots=True)
class Engine:
    """What a cell runs on. Cells whose engines are equal share a start; a host of others is no
    start of ours."""

    label: str
    is_ours: bool
    settings: Hashable


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is made on one start of an engine."""

    engine: Engine
    steps: Sequence[Step]


def stretches(
    definition: Definition, cells: Sequence[CellPlan], engine_of: Callable[[CellPlan], Engine]
) -> list[Stretch]:
    """Everything in the order in which it is made; the same for the same definition.

    `per-repeat`: each repeat is a pass through all engines in an order of its own. `once`: one
    pass, and each engine makes all repeats, one after the other.
    """
    dice = random.Random(definition.seed)
    groups: dict[Engine, list[CellPlan]] = {}
    for cell in cells:
        groups.setdefault(engine_of(cell), []).append(cell)
    repeats = range(1, definition.repeats + 1)
    passes = [list(repeats)] if definition.engine_starts == "once" else [[n] for n in repeats]
    found = []
    for numbers in passes:
        for engine in dice.sample(list(groups), len(groups)):
            steps = [step for n in numbers for step in _shuffled(groups[engine], n, dice)]
            found.append(Stretch(engine, steps))
    return found


def _shuffled(cells: Sequence[CellPlan], repeat: int, dice: random.Random) -> list[Step]:
    return [Step(cell, repeat) for cell in dice.sample(cells, len(cells))]
