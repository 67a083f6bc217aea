"""How long what is left of a sweep takes, by what was measured so far."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.sweep.made_cell import MadeCell
from loadgen.sweep.order import Step

ASSUMED_START_S, ASSUMED_OVERHEAD_S = 40.0, 5.0
"""Until an engine was started here: of a small model on two cores; and what a run takes beyond its
`--run-time`."""


@dataclass(slots=True)
class Durations:
    """`run_times_s` is what each cell's `--run-time` asks for, None without one."""

    run_times_s: Mapping[str, float | None]
    _starts_s: list[float] = field(default_factory=list)
    _overheads_s: list[float] = field(default_factory=list)
    _walls_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, made: MadeCell) -> None:
        """Learn from a run that was made to its end."""
        if not made.is_whole:
            return
        if made.engine_start_s is not None:
            self._starts_s.append(made.engine_start_s)
        if made.run_time_s is not None:
            self._overheads_s.append(made.wall_s - made.run_time_s)
        self._walls_s.setdefault(made.cell_id, []).append(made.wall_s)

    @property
    def is_measured(self) -> bool:
        """Whether an engine's start was timed."""
        return bool(self._starts_s)

    def left_s(self, steps: Iterable[Step], starts: int) -> float | None:
        """Seconds for these runs and so many engine starts; None while not known."""
        runs_s = [self._run_s(step.cell.cell_id) for step in steps]
        known_s = [each for each in runs_s if each is not None]
        if len(known_s) < len(runs_s):
            return None
        return sum(known_s) + starts * _median(self._starts_s, ASSUMED_START_S)

    def _run_s(self, cell_id: str) -> float | None:
        if own := self._walls_s.get(cell_id):
            return _median(own, 0.0)
        run_time_s = self.run_times_s.get(cell_id)
        if run_time_s is not None:
            return run_time_s + _median(self._overheads_s, ASSUMED_OVERHEAD_S)
        others = [wall_s for walls_s in self._walls_s.values() for wall_s in walls_s]
        return _median(others, 0.0) if others else None


def spoken(seconds: float | None) -> str:
    """`40 s`, `12 min`, `3 h 5 min`."""
    if seconds is None:
        return "not known yet"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _median(values: Sequence[float], default: float) -> float:
    return statistics.median(values) if values else default
