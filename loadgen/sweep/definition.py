"""What a sweep is, as its TOML file says it."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from loadgen.errors import UsageError
from loadgen.runs.directory import DEFAULT_FILE
from loadgen.runs.machine import hide_headers, hide_keys, masked, without_secrets
from loadgen.scratch import without_device
from loadgen.targets.toml_table import TomlTable

Scalar: TypeAlias = str | int | float | bool
Value: TypeAlias = Scalar | Sequence[Scalar]


def is_value(value: Any) -> bool:
    """Whether it can stand behind an option: text, a finite number, a switch, or a list of such."""
    if isinstance(value, list | tuple):
        return (
            bool(value)
            and not any(isinstance(v, list | tuple) for v in value)
            and all(map(is_value, value))
        )
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def as_words(key: str, value: Value) -> tuple[str, ...]:
    """The words of the command line; a list gives the option once for each of its members."""
    if isinstance(value, list | tuple):
        return tuple(word for each in value for word in as_words(key, each))
    if isinstance(value, bool):
        return (f"--{key}",) if value else ()
    return (f"--{key}={value}",)


def text_of(key: str, value: Value) -> str:
    """The value as it stands in tables and folder names; secrets are hidden."""
    if key == "engine-arg":
        words = value if isinstance(value, list | tuple) else [value]
        return " ".join(without_secrets(map(str, words)))
    if isinstance(value, list | tuple):
        return " ".join(text_of(key, each) for each in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if key == "extra-body":
        return hide_keys(str(value))
    return hide_headers([str(value)])[0] if key == "header" else masked(str(value))


ENGINE_STARTS = ("per-repeat", "once")
MOST_REPEATS = 10_000
OURS = {
    "out": "the sweep names the run directories",
    "keep-cache": "say keep_cache = true at the top of the file",
    "locustfile": "say locustfile at the top of the file",
    "help": "ask `kvswarm run --help`",
    "worker": "each cell is a run of its own",
}
"""Options of `kvswarm run` that are not for a sweep, and why."""
SECRET = "header"
"""Its values may be keys: they are written nowhere."""

_FOLDER = re.compile(r"[A-Za-z0-9][\w.-]*")

Options = Mapping[str, Value]


def option_texts(options: Options) -> dict[str, str]:
    """Each value as it stands in tables."""
    return {key: text_of(key, value) for key, value in options.items()}


@dataclass(frozen=True, slots=True)
class Definition:
    """Options are named as those of `kvswarm run`, in full and without dashes.

    `options` are for every cell, `axes` span the matrix, `cells` are further cells on top of
    `options`, `skip` combinations of axes to leave out. Repeat r, from 1, has the workload seed of
    `options` (default 0) plus r - 1. `seed` shuffles the order. `source` is what errors name.
    Raises UsageError.
    """

    name: str
    locustfile: str = DEFAULT_FILE
    repeats: int = 1
    seed: int = 0
    keep_cache: bool = False
    engine_starts: str = ENGINE_STARTS[0]
    options: Options = field(default_factory=dict)
    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    cells: Sequence[Options] = ()
    skip: Sequence[Options] = ()
    source: str = "sweep"

    def __post_init__(self) -> None:
        self._check_top()
        self._check_options("options", self.options)
        self._check_axes()
        for number, cell in enumerate(self.cells, 1):
            self._check_options(f"cells.{number}", cell)
        for number, left_out in enumerate(self.skip, 1):
            self._check_skip(f"skip.{number}", left_out)

    def error(self, table: str, key: str, problem: str) -> UsageError:
        """The error to raise about a key of a table, empty for the top of the file; without a key
        about all of the table."""
        if not key:
            return UsageError(f"{self.source} [{table}]: {problem}")
        return TomlTable({}, self.source, table).error(key, problem)

    def command(self, out: Path) -> str:
        """What to type for it to be made in `out`; one that comes from no file has options only."""
        is_file = Path(self.source).suffix == ".toml"
        return f"`kvswarm sweep {self.source} --out {out}`" if is_file else f"--out {out}"

    def place(self, key: str, cell: Options) -> str:
        """The table from which a cell has an option."""
        for number, own in enumerate(self.cells, 1):
            if own.get(key) is not None and {**self.options, **own} == dict(cell):
                return f"cells.{number}"
        return "axes" if key in self.axes else "options"

    @property
    def as_json(self) -> dict[str, Any]:
        """Everything but `source`, with the values of headers hidden."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "source"}
        values["options"] = option_texts(self.options)
        for name in ("cells", "skip"):
            values[name] = [option_texts(each) for each in values[name]]
        values["axes"] = {key: [text_of(key, v) for v in vs] for key, vs in self.axes.items()}
        return values

    def _check_top(self) -> None:
        if not _FOLDER.fullmatch(self.name):
            raise self.error("", "name", f"{self.name!r} is no name for a folder: use letters")
        if self.repeats < 1:
            raise self.error("", "repeats", f"{self.repeats} makes no run: give 1 or more")
        if self.repeats > MOST_REPEATS:
            raise self.error("", "repeats", f"more than {MOST_REPEATS:,}: give fewer")
        if self.engine_starts not in ENGINE_STARTS:
            choices = " or ".join(ENGINE_STARTS)
            raise self.error("", "engine_starts", f"{self.engine_starts!r}: give {choices}")

    def _check_axes(self) -> None:
        for key, values in self.axes.items():
            if key in self.options:
                raise self.error("axes", key, "stands in [options] too: leave it out of one")
            if key == SECRET:
                raise self.error("axes", key, "would be written into tables: give it in [options]")
            if not isinstance(values, Sequence) or isinstance(values, str) or not values:
                raise self.error("axes", key, f"must be a list with values, not {values!r}")
            for number, value in enumerate(values):
                self._check_options("axes", {key: value})
                if as_words(key, value) in [as_words(key, each) for each in values[:number]]:
                    raise self.error("axes", key, f"has {text_of(key, value)} twice")
        if math.prod(map(len, self.axes.values())) > MOST_REPEATS:
            raise self.error("axes", "", f"more than {MOST_REPEATS:,} cells: give fewer values")

    def _check_options(self, table: str, options: Options) -> None:
        for key, value in options.items():
            if key in OURS:
                raise self.error(table, key, f"is not for a sweep: {OURS[key]}")
            if not is_value(value):
                raise self.error(
                    table, key, f"must be text, a number, true, false or a list of them: {value!r}"
                )
            if key == "seed" and (not isinstance(value, int) or isinstance(value, bool)):
                raise self.error(table, key, f"must be a whole number, not {value!r}")
            if key == "seed" and table != "options" and self.repeats > 1:
                raise self.error(table, key, "each repeat has a seed of its own: give repeats = 1")

    def _check_skip(self, table: str, left_out: Options) -> None:
        if not left_out:
            raise self.error(table, "", "is empty and would leave out every cell")
        for key, value in left_out.items():
            if key not in self.axes:
                raise self.error(table, key, f"is no axis, those are {', '.join(self.axes)}")
            if value not in self.axes[key]:
                raise self.error(table, key, f"{value!r} is not among the values of that axis")


def read_definition(path: Path) -> Definition:
    """The sweep in a TOML file. Raises UsageError naming file, table and key."""
    try:
        values = tomllib.loads(without_device(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the sweep {path}: {error.strerror}") from None
    except RecursionError:
        raise UsageError(f"{path} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    root = TomlTable(values, str(path), "")
    root.allow(*(each.name for each in fields(Definition) if each.name != "source"))
    root.required_text("name")
    for name, kind, meaning in _KINDS:
        if name in values and type(values[name]) is not kind:
            raise root.error(name, f"must be {meaning}, not {values[name]!r}")
    for name in ("cells", "skip"):
        for each in values.get(name, []):
            if not isinstance(each, dict):
                raise root.error(name, f"must be tables, [[{name}]]")
    return Definition(**values, source=str(path))


_KINDS: tuple[tuple[str, type, str], ...] = (
    ("locustfile", str, "a string"),
    ("repeats", int, "a whole number"),
    ("seed", int, "a whole number"),
    ("keep_cache", bool, "true or false"),
    ("engine_starts", str, "a string"),
    ("options", dict, "a table"),
    ("axes", dict, "a table"),
    ("cells", list, "tables, [[cells]]"),
    ("skip", list, "tables, [[skip]]"),
)
