"""A twin's predictions against runs that it has not seen: cells of a sweep on real engines.

    kvswarm sweep tests/bench/twin_cells.toml --out runs/bench-twin
    kvswarm run calibrate --target vllm --kv-tokens 10240 --out runs/bench-twin-calibration
    python tests/bench/twin_bench.py runs/bench-twin [--calibration RUN] [--report FOLDER]

Some cells of each kind make the twins, by `kvswarm calibrate`: one of an engine alone, one of two
behind a router. Which, their names alone decide. All others are held out: each run of theirs is
simulated with its own requests. Exit code 1 where a goal is missed. A run of `kvswarm run
calibrate` makes a twin of its own, which is held against the cells of one engine.
"""

import argparse
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import median

import numpy as np
from table import machine_line

from loadgen.compare.run import faults_of
from loadgen.errors import UsageError
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.json_file import read_object
from loadgen.runs.recorded import RecordedRun
from loadgen.sweep.folder import SWEEP_JSON
from loadgen.sweep.table import MadeCell, read_made_cell

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from loadgen.twin.calibrate import calibrate
from loadgen.twin.load import recorded_load
from loadgen.twin.model import TwinModel
from loadgen.twin.predict import RATE, TIMES, measured_figures, predict_load, with_edges
from loadgen.twin.routing import Fleet
from loadgen.twin.shape_of import shape_of_run

REPEATS = 2
"""Of each cell that a twin is made of."""
COMPUTED = "computed_prompt_tokens"
FIGURES = (COMPUTED, *TIMES, RATE)
PAGE = "twin.md"
CELLS = Path(__file__).with_name("twin_cells.toml")
USUAL = {k: str(v) for k, v in tomllib.loads(CELLS.read_text("utf-8"))["options"].items()}
TITLES = {
    COMPUTED: "computed tokens",
    "ttft_mean_ms": "TTFT mean",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p95_ms": "TTFT p95",
    "e2e_mean_ms": "E2E mean",
    RATE: "requests/s",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """At least `share` of the cells are off by at most `most`."""

    figure: str
    most: float
    share: float


GOALS = (
    Goal(COMPUTED, 0.01, 0.95),
    Goal("ttft_mean_ms", 0.10, 0.90),
    Goal("ttft_mean_ms", 0.05, 0.50),
    Goal("ttft_p95_ms", 0.10, 0.90),
    Goal("ttft_p95_ms", 0.05, 0.50),
    Goal(RATE, 0.03, 0.90),
)
LEAST_COVERED = 0.90


@dataclass(frozen=True, slots=True)
class Kind:
    """Cells of targets with this in their names, the first that fits; `made_of` of them make the
    twin that is called `twin`."""

    title: str
    part: str
    twin: str
    made_of: int


ALONE, BEHIND = "one engine", "two engines behind a router"
KINDS = (
    Kind(BEHIND, "-fleet", BEHIND, 2),
    Kind("one engine with an offload tier", "-offload", ALONE, 2),
    Kind(ALONE, "", ALONE, 6),
)


@dataclass(frozen=True, slots=True)
class HeldOutCell:
    """Medians over the repeats of a cell by figure, simulated over measured less 1; `spread` is
    half of what lies between the smallest and the largest; `covered` how many of `intervals` hold
    what was measured; `edge` whether the twin named the load as one at the edge of what the engine
    holds."""

    name: str
    kind: Kind
    errors: Mapping[str, float]
    spread: Mapping[str, float]
    covered: int
    intervals: int
    edge: bool


Runs = Sequence[tuple[MadeCell, Path]]


def cells_of(folder: Path) -> tuple[dict[str, Runs], list[str]]:
    """The runs of each cell of a sweep, in the order of their repeats, and in words what is missing
    or not to be used. Raises UsageError where a cell has no run at all."""
    kept = read_object(folder / SWEEP_JSON)
    found: dict[str, list[tuple[MadeCell, Path]]] = {name: [] for name in kept.get("cells", {})}
    faults: list[str] = []
    for path in sorted((folder / "cells").glob("*")):
        cell = read_made_cell(path)
        run = RecordedRun(path)
        if cell is None:
            faults.append(f"{path.name}: not made to its end")
        elif wrong := [str(each) for each in faults_of(run.description, run.summary)]:
            faults.append(f"{path.name}: {wrong[0]}")
        else:
            found[cell.cell_id].append((cell, path))
    empty = [name for name, runs in found.items() if not runs]
    if empty or not found:
        raise UsageError(f"{folder}: no run of {', '.join(empty) or 'any cell'}: make bench-twin")
    return {
        name: sorted(runs, key=lambda each: each[0].repeat) for name, runs in found.items()
    }, faults


def kind_of(runs: Runs) -> Kind:
    """By the target."""
    target = runs[0][0].axes["target"]
    return next(kind for kind in KINDS if kind.part in target)


def split(cells: Mapping[str, Runs]) -> tuple[dict[str, list[Path]], list[Runs], list[Runs]]:
    """Runs by the twin that they make, the cells that these are of, and those held out."""
    made_of: dict[str, list[Path]] = defaultdict(list)
    seen: list[Runs] = []
    unseen: list[Runs] = []
    for kind in KINDS:
        own = [runs for runs in cells.values() if kind_of(runs) == kind]
        own.sort(key=lambda runs: sha256(runs[0][0].cell_id.encode()).digest())
        for runs in own[: kind.made_of]:
            made_of[kind.twin] += [path for _, path in runs[:REPEATS]]
        seen += own[: kind.made_of]
        unseen += sorted(own[kind.made_of :], key=lambda runs: runs[0][0].cell_id)
    return made_of, seen, unseen


def held_out(model: TwinModel, runs: Runs) -> HeldOutCell:
    """One cell that the twin was not made of."""
    off: dict[str, list[float]] = {name: [] for name in FIGURES}
    covered = intervals = edges = 0
    for _, path in runs:
        shape, fleet = shape_of_run(path), Fleet.of_run(recorded_run(path))
        load = recorded_load(path, shape.block_size)
        plain = predict_load(model, load, shape, fleet, counted=load.measured)
        prediction = with_edges(plain, model, load, shape, fleet, counted=load.measured)
        measured = measured_figures(load)
        edges += prediction.is_at_edge
        for name in FIGURES:
            off[name].append(prediction.figures[name] / measured[name] - 1)
        for name, (low, high) in prediction.intervals.items():
            intervals += 1
            covered += low <= measured[name] <= high
    return HeldOutCell(
        name=name_of(runs),
        kind=kind_of(runs),
        errors={name: median(each) for name, each in off.items()},
        spread={name: (max(each) - min(each)) / 2 for name, each in off.items()},
        covered=covered,
        intervals=intervals,
        edge=edges * 2 > len(runs),
    )


def name_of(runs: Runs) -> str:
    """The target, and what else is not as in most cells."""
    axes = dict(runs[0][0].axes)
    own = {key: value for key, value in axes.items() if value and value != USUAL.get(key)}
    return ", ".join([own.pop("target"), *(f"{key} {value}" for key, value in own.items())])


def within(cells: Sequence[HeldOutCell], figure: str, most: float) -> float:
    """The share of cells off by at most so much."""
    return sum(abs(cell.errors[figure]) <= most for cell in cells) / len(cells)


def verdicts(cells: Sequence[HeldOutCell]) -> Iterator[tuple[str, bool]]:
    """Each goal in words, and whether it is reached."""
    for goal in GOALS:
        share = within(cells, goal.figure, goal.most)
        said = (
            f"{TITLES[goal.figure]} within {goal.most:.0%} in {share:.0%} of the cells (goal:"
            f" {goal.share:.0%})"
        )
        yield said, share >= goal.share
    share = sum(cell.covered for cell in cells) / sum(cell.intervals for cell in cells)
    yield (
        f"{share:.0%} of the single runs' times lie in their intervals (goal: {LEAST_COVERED:.0%})",
        share >= LEAST_COVERED,
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """What `models` say of `cells`, of which they have not seen any; `two_minutes` of those of one
    engine by the twin of a single run, empty without one; `seen` are those that the twins were made
    of; `faults` name runs that are not in it."""

    models: Mapping[str, TwinModel]
    seen: Sequence[Runs]
    cells: Sequence[HeldOutCell]
    two_minutes: Sequence[HeldOutCell]
    calibration: str
    faults: Sequence[str]
    date: str


def page(judged: Judged) -> Iterator[str]:
    """Markdown."""
    cells = judged.cells
    yield "# A twin against runs it has not seen\n"
    yield "What `kvswarm simulate` says, set against real engines.\n"
    yield "```sh\nmake bench-twin\n```\n"
    yield f"Measured on {judged.date} on {machine_line()}.\n"
    yield "## In short\n"
    for said, reached in verdicts(cells):
        yield f"- {'Reached' if reached else 'Missed'}: {said}."
    yield f"- Held out: {len(cells)} cells, on which no twin was fitted."
    yield from (f"- Left out: {each}." for each in judged.faults)
    yield ""
    yield from errors_by_kind(cells)
    yield (
        "Two engines, their servers, a router and the client share the cores of this machine. How"
        " fast one engine is depends on what the other does, and no twin here knows that.\n"
    )
    if judged.two_minutes:
        yield (
            "The same cells of one engine by the twin of"
            f" {judged.calibration} alone, so in another minute of the machine than they:\n"
        )
        yield from errors_by_kind(judged.two_minutes)
    yield "## What the twins were made of\n"
    for name, model in judged.models.items():
        yield (
            f"- {name}: {model.runs} runs; whole runs differ from the twin by {model.speed_sd:.1%}"
            f" (standard deviation), the median reply by {model.error_share:.1%}."
        )
    yield "\nTheir cells, chosen by a hash of their names, with two repeats each:\n"
    yield from (f"- {name_of(runs)}" for runs in judged.seen)
    yield "\n## Each cell\n"
    yield (
        "Errors are simulated over measured, each repeat against its own simulation: the median,"
        " and behind ± half of what lies between those of the repeats. `held` counts figures of"
        " single runs in their intervals of 90 %. Cells at the edge of what the engine holds, by"
        " the twin's own word, are marked with *.\n"
    )
    yield "| cell | " + " | ".join(TITLES[name] for name in FIGURES) + " | held |"
    yield "| --- |" + " ---: |" * (len(FIGURES) + 1)
    for cell in cells:
        shown = (f"{cell.errors[n]:+.1%} ± {cell.spread[n]:.1%}" for n in FIGURES)
        held = f"{cell.covered} of {cell.intervals}"
        yield f"| {cell.name}{' *' if cell.edge else ''} | " + " | ".join(shown) + f" | {held} |"


def errors_by_kind(cells: Sequence[HeldOutCell]) -> Iterator[str]:
    """A table of mean absolute errors."""
    yield "| mean absolute error | cells | " + " | ".join(TITLES[n] for n in FIGURES) + " | held |"
    yield "| --- |" + " ---: |" * (len(FIGURES) + 2)
    groups = [(kind.title, [each for each in cells if each.kind == kind]) for kind in KINDS[::-1]]
    for title, own in (*groups, ("all", cells)):
        if not own:
            continue
        means = (f"{np.mean([abs(cell.errors[n]) for cell in own]):.1%}" for n in FIGURES)
        held = sum(cell.covered for cell in own) / sum(cell.intervals for cell in own)
        yield f"| {title} | {len(own)} | " + " | ".join(means) + f" | {held:.0%} |"
    yield ""


def clock(run: Path) -> str:
    """When it began."""
    return f"{datetime.fromtimestamp(recorded_run(run).description['start_unix_s'], UTC):%H:%M}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument(
        "--calibration", type=Path, nargs="+", default=[], help="runs of `kvswarm run calibrate`"
    )
    parser.add_argument("--report", type=Path, help="folder of the page")
    parsed = parser.parse_args()
    cells, faults = cells_of(parsed.sweep)
    made_of, seen, unseen = split(cells)
    models = {name: calibrate(paths) for name, paths in made_of.items()}
    two_minutes = []
    if parsed.calibration:
        alone = calibrate(parsed.calibration)
        two_minutes = [held_out(alone, runs) for runs in unseen if kind_of(runs) == KINDS[-1]]
    paths = [path for runs in unseen for _, path in runs]
    first, *_, last = sorted(paths, key=lambda run: recorded_run(run).description["start_unix_s"])
    begun_s = recorded_run(first).description["start_unix_s"]
    judged = Judged(
        models,
        seen,
        [held_out(models[kind_of(runs).twin], runs) for runs in unseen],
        two_minutes,
        " and ".join(f"`kvswarm run calibrate` at {clock(path)}" for path in parsed.calibration),
        faults,
        f"{datetime.fromtimestamp(begun_s, UTC):%Y-%m-%d} from {clock(first)} to {clock(last)} UTC",
    )
    text = "\n".join(page(judged)) + "\n"
    sys.stdout.write(text)
    if parsed.report is not None:
        (parsed.report / PAGE).write_text(text, encoding="utf-8")
    return 0 if all(reached for _, reached in verdicts(judged.cells)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.exit(str(error))
