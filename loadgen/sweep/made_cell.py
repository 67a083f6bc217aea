"""What a sweep notes beside a run once it is over: `cell.json` in its directory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from loadgen.runs.exit_code import DONE, FAILED, SATURATED
from loadgen.runs.json_file import malformed, read_object, write_json

CELL_JSON = "cell.json"
WHOLE = (DONE, FAILED, SATURATED)
"""Exit codes of runs that have something to say."""
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("axes", "options"), dict),
    **dict.fromkeys(("repeat", "seed", "position", "exit_code"), int),
    **dict.fromkeys(("cell_id", "error"), str),
    "wall_s": (int, float),
}


@dataclass(frozen=True, slots=True)
class MadeCell:
    """A run that came to its end. `position` counts the runs of the sweep in the order in which
    they ended, from 1. `wall_s` is all the run took, `engine_start_s` the start of its engine
    before it, None where that was running already. `run_time_s` is what `--run-time` asked for.
    `error` is what ended the engine."""

    cell_id: str
    axes: Mapping[str, str]
    options: Mapping[str, str]
    repeat: int
    seed: int
    position: int
    exit_code: int
    wall_s: float
    engine_start_s: float | None = None
    run_time_s: float | None = None
    error: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the run was made to its end; any other is made again."""
        return self.exit_code in WHOLE

    def write(self, run: Path) -> None:
        """Note it in the directory of the run."""
        write_json(run / CELL_JSON, asdict(self))


def read_made_cell(run: Path) -> MadeCell | None:
    """None for a run that did not come to its end. Raises UsageError for a damaged note."""
    if not (run / CELL_JSON).exists():
        return None
    found = read_object(run / CELL_JSON)
    for name, kind in _KINDS.items():
        if name in found and not isinstance(found[name], kind):
            raise malformed(run / CELL_JSON, f"{name} is {found[name]!r}")
    try:
        return MadeCell(**{each.name: found[each.name] for each in fields(MadeCell)})
    except KeyError as error:
        raise malformed(run / CELL_JSON, f"{error.args[0]} is missing") from None
