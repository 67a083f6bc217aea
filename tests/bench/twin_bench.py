"""A twin's predictions against runs that it has not seen: cells of studies on real engines.

    python tests/bench/twin_bench.py runs/study-task2 [runs/study-task1 …] [--report FOLDER]

Some cells of each study make the twin, by `kvswarm calibrate`; which, their names alone decide. All
others are held out: each run of theirs is simulated with its own requests, and the medians over the
repeats of a cell are set against each other, with the spread of the measured repeats beside them.
Exit code 1 where a goal is missed.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median

import numpy as np
from table import machine_line

from loadgen.errors import UsageError
from loadgen.sweep.table import MadeCell, read_made_cell

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from loadgen.twin.calibrate import calibrate
from loadgen.twin.load import recorded_load
from loadgen.twin.model import TwinModel
from loadgen.twin.predict import TIMES, measured_figures, predict_load
from loadgen.twin.shape_of import shape_of_run

MADE_OF = 6
"""Cells of a study that the twin is made of, two runs of each."""
REPEATS = 2
COMPUTED, RATE = "computed_prompt_tokens", "requests_per_s"
FIGURES = (COMPUTED, *TIMES, RATE)
PAGE = "twin.md"
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
class HeldOutCell:
    """Medians over the repeats of a cell by figure, simulated over measured less 1; `spread` is
    half the width in which the middle half of the measured repeats lies, over their median;
    `covered` how many of `intervals` hold what was measured."""

    name: str
    errors: Mapping[str, float]
    spread: Mapping[str, float]
    covered: int
    intervals: int


def cells_of(folder: Path) -> dict[str, list[tuple[MadeCell, Path]]]:
    """The runs of a study by cell, in the order of their repeats. Raises UsageError without any."""
    found: dict[str, list[tuple[MadeCell, Path]]] = defaultdict(list)
    for path in sorted((folder / "cells").glob("*")):
        cell = read_made_cell(path)
        if cell is not None and cell.exit_code == 0:
            found[cell.cell_id].append((cell, path))
    if not found:
        raise UsageError(
            f"{folder} holds no cells: `kvswarm study task2 --out {folder}` makes them"
        )
    return {name: sorted(runs, key=lambda run: run[0].repeat) for name, runs in found.items()}


def split(cells: Mapping[str, list[tuple[MadeCell, Path]]]) -> tuple[list[Path], list[str]]:
    """Runs that the twin is made of, and the names of the cells that are held out."""
    ordered = sorted(cells, key=lambda name: sha256(name.encode()).digest())
    made_of = ordered[:MADE_OF]
    runs = [path for name in made_of for _, path in cells[name][:REPEATS]]
    return runs, sorted(ordered[MADE_OF:])


def held_out(model: TwinModel, runs: Sequence[tuple[MadeCell, Path]]) -> HeldOutCell:
    """One cell that the twin was not made of."""
    told: dict[str, list[float]] = {name: [] for name in FIGURES}
    real: dict[str, list[float]] = {name: [] for name in FIGURES}
    covered = intervals = 0
    for _, path in runs:
        shape = shape_of_run(path)
        load = recorded_load(path, shape.block_size)
        prediction = predict_load(model, load, shape)
        measured = measured_figures(load)
        for name in FIGURES:
            told[name].append(prediction.figures[name])
            real[name].append(measured[name])
        for name, (low, high) in prediction.intervals.items():
            intervals += 1
            covered += low <= measured[name] <= high
    return HeldOutCell(
        name=" ".join(str(value) for value in runs[0][0].axes.values() if value),
        errors={name: median(told[name]) / median(real[name]) - 1 for name in FIGURES},
        spread={name: half_width(real[name]) / median(real[name]) for name in FIGURES},
        covered=covered,
        intervals=intervals,
    )


def half_width(values: Sequence[float]) -> float:
    """Half of what lies between the quartiles."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(high - low) / 2


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


def page(cells: Sequence[HeldOutCell], model: TwinModel) -> Iterator[str]:
    """Markdown."""
    yield "# A twin against runs it has not seen\n"
    yield "What `kvswarm simulate` says, set against real engines.\n"
    yield "```sh\nmake bench-twin\n```\n"
    yield f"Simulated on {machine_line()}; measured as the studies' pages say.\n"
    yield "## In short\n"
    for said, reached in verdicts(cells):
        yield f"- {'Reached' if reached else 'Missed'}: {said}."
    yield (
        f"\nThe twin was made of {model.runs} runs of {MADE_OF} cells of each study; the"
        f" {len(cells)} other cells are below. Errors are simulated over measured, both medians"
        " over the repeats; behind ± is half the middle half of the measured repeats: less than"
        " that nobody can ask for.\n"
    )
    yield "| cell | " + " | ".join(TITLES[name] for name in FIGURES) + " |"
    yield "| --- |" + " ---: |" * len(FIGURES)
    for cell in cells:
        shown = (f"{cell.errors[n]:+.1%} ± {cell.spread[n]:.1%}" for n in FIGURES)
        yield f"| {cell.name} | " + " | ".join(shown) + " |"
    means = (f"{np.mean([abs(c.errors[n]) for c in cells]):.1%}" for n in FIGURES)
    yield "| mean absolute error | " + " | ".join(means) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--report", type=Path, help="folder of the page")
    parsed = parser.parse_args()
    made_of: list[Path] = []
    cells: list[list[tuple[MadeCell, Path]]] = []
    for folder in parsed.studies:
        found = cells_of(folder)
        runs, names = split(found)
        made_of += runs
        cells += [found[name] for name in names]
    model = calibrate(made_of)
    judged = [held_out(model, runs) for runs in cells]
    text = "\n".join(page(judged, model)) + "\n"
    sys.stdout.write(text)
    if parsed.report is not None:
        (parsed.report / PAGE).write_text(text, encoding="utf-8")
    return 0 if all(reached for _, reached in verdicts(judged)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.exit(str(error))
