"""What `kvswarm advise` picks against a sweep of every size on real engines.

    python tests/bench/advise_bench.py cells runs/bench-advise.toml runs/bench-advise-given.toml
    kvswarm sweep runs/bench-advise-given.toml --out runs/bench-advise-given
    kvswarm sweep runs/bench-advise.toml --out runs/bench-advise
    python tests/bench/advise_bench.py judge runs/bench-advise runs/bench-advise-given CALIBRATION

Of each workload one short run is given, on one size and with other requests than those of the
sweep; from these and the run of `kvswarm run calibrate` a twin is made. A question is the traffic
of one run of the sweep, on that size and first come, an order and a limit, which lies half way, as
a factor, between what the smallest and the largest cache give to the same requests. Right is the
smallest size that keeps it, with all larger ones. Exit code 1 where a goal is missed.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from table import machine_line
from twin_bench import cells_of

from loadgen.compare.gate import Limit
from loadgen.errors import UsageError
from loadgen.locality.trace_sources import recorded_run

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from loadgen.twin.advice import ORDERS, Advice
from loadgen.twin.advise import AdviceLoad, AdviceOptions, advise, parse_objective, value_of
from loadgen.twin.calibrate import calibrate

SIZES = (1280, 1920, 2816, 4224, 6400, 9600)
GIVEN_SIZE = 2816
GIVEN_SEED = 100
TARGETS = {False: "vllm", True: "vllm-context"}
STATISTICS = ("ttft_ms.mean", "ttft_ms.p95")
LEAST_RANGE = 1.2
"""Between the smallest and the largest cache: a limit between less would be of noise."""
PAGE = "advise.md"
LEAST_RIGHT, MOST_TIME = 0.9, 0.1

USUAL = {
    "users": 1,
    "spawn-rate": 16,
    "batch-size": 1,
    "batches": 40,
    "contexts": 12,
    "context-tokens": 480,
    "output-tokens": 8,
    "zipf": 0,
    "stickiness": 0,
    "repeat": 0,
}
WORKLOADS: Mapping[str, Mapping[str, object]] = {
    "one user": {"contexts": 8},
    "four users, Zipf": {"users": 4, "zipf": 1},
    "two users who stay": {"users": 2, "stickiness": 0.8},
    "unlike lengths": {"users": 3, "contexts": 10, "context-tokens": "128-1000"},
    "batches of 12": {"contexts": 6, "batch-size": 12, "batches": 3},
    "Poisson, 1.4 a second": {"users": 0, "arrivals": "poisson", "rate": 1.4},
}
WITHOUT_A_QUEUE = frozenset({"one user"})
"""Workloads in which no two requests wait, so that there is no order."""


def definition(name: str, cells: Sequence[Mapping[str, object]], repeats: int) -> str:
    """A sweep in TOML."""
    tables = [("[options]", USUAL), *(("[[cells]]", cell) for cell in cells)]
    head = [f'name = "{name}"', 'locustfile = "batched"', f"repeats = {repeats}"]
    lines = [*head, 'engine_starts = "once"']
    for title, values in tables:
        lines += ["", title, *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def sweep_cells() -> list[Mapping[str, object]]:
    """Every size and order of every workload."""
    return [
        {"target": TARGETS[order], "kv-tokens": size, **workload}
        for (name, workload), order, size in product(WORKLOADS.items(), ORDERS, SIZES)
        if not (order and name in WITHOUT_A_QUEUE)
    ]


def given_cells() -> list[Mapping[str, object]]:
    """The run of each workload that advice is asked about."""
    return [
        {"target": TARGETS[False], "kv-tokens": GIVEN_SIZE, "seed": GIVEN_SEED, **workload}
        for workload in WORKLOADS.values()
    ]


def workload_of(axes: Mapping[str, str]) -> str:
    """Whose options a cell has."""
    return next(
        name
        for name, own in WORKLOADS.items()
        if all(axes.get(key, "") in ("", str(value)) for key, value in {**USUAL, **own}.items())
    )


Traffic = tuple[str, int, bool]
"""The workload, the seed of its requests, and whether the order is by context."""


@dataclass(frozen=True, slots=True)
class Question:
    """Of the requests of one seed of a workload, in one order: a limit, the size that a sweep finds
    and the one advised, None where advice knows none; `flagged` whether the advice itself says that
    runs differ by more than decides it, of its pick or of what is right."""

    workload: str
    seed: int
    by_context: bool
    limit: Limit
    right: int
    picked: int | None
    flagged: bool

    @property
    def steps(self) -> float:
        """By which the pick is too large; below 0 too small."""
        if self.picked is None:
            return math.inf
        return SIZES.index(self.picked) - SIZES.index(self.right)


def measured(run: Path, limit: Limit) -> float:
    """What is limited, in ms."""
    times_ms = recorded_run(run).requests.latency(limit.statistic.metric.name)
    return value_of(limit, times_ms[~np.isnan(times_ms)])


def limit_between(by_size: Mapping[int, Path], statistic: str) -> Limit | None:
    """Half way between the smallest and the largest; None where they hardly differ."""
    any_limit = parse_objective(f"{statistic}<=1")
    small, large = (measured(by_size[size], any_limit) for size in (SIZES[0], SIZES[-1]))
    if small < LEAST_RANGE * large:
        return None
    return parse_objective(f"{statistic}<={math.sqrt(small * large):.0f}")


def smallest(by_size: Mapping[int, Path], limit: Limit) -> int:
    """That keeps the limit, with all larger ones."""
    found = SIZES[-1]
    for size in reversed(SIZES):
        if measured(by_size[size], limit) > limit.bound:
            break
        found = size
    return found


def asked(of: Traffic, by_size: Mapping[int, Path], limit: Limit, advice: Advice) -> Question:
    """Beside what is right."""
    workload, seed, by_context = of
    right, best = smallest(by_size, limit), advice.smallest(by_context)
    is_open = best is not None and best.is_open(limit)
    doubted = {(each.kv_tokens, each.by_context) for each in advice.nearly}
    flagged = is_open or (right, by_context) in doubted
    return Question(workload, seed, by_context, limit, right, best and best.kv_tokens, flagged)


def questions(sweep: Path, given: Path, calibration: Path) -> tuple[list[Question], list[str], int]:
    """All of them, what is left out, and how many have no answer that a limit could tell."""
    cells, faults = cells_of(sweep)
    told, given_faults = cells_of(given)
    runs = {workload_of(made[0][0].axes): made[0][1] for made in told.values()}
    model = calibrate([calibration, *runs.values()])
    by_load: dict[Traffic, dict[int, Path]] = {}
    for cell, path in (each for made in cells.values() for each in made):
        order, size = cell.axes["target"] == TARGETS[True], int(cell.axes["kv-tokens"])
        by_load.setdefault((workload_of(cell.axes), cell.seed, order), {})[size] = path
    found, without = [], 0
    for traffic, by_size in sorted(by_load.items()):
        about = AdviceLoad.of_run(by_load[*traffic[:2], False][GIVEN_SIZE])
        for statistic in STATISTICS:
            limit = limit_between(by_size, statistic)
            if limit is None:
                without += 1
                continue
            advice = advise(model, about, limit, AdviceOptions(sizes=SIZES))
            found.append(asked(traffic, by_size, limit, advice))
    return found, [*faults, *given_faults], without


def engine_time_s(*folders: Path) -> float:
    """Of all runs of sweeps, and of their engines' starts."""
    cells = [made for folder in folders for made in cells_of(folder)[0].values()]
    return sum(cell.wall_s + (cell.engine_start_s or 0) for runs in cells for cell, _ in runs)


def run_time_s(path: Path, sweep: Path) -> float:
    """Of a run, from its first request to its last reply, and of a start as the sweep has them."""
    cells = [cell for runs in cells_of(sweep)[0].values() for cell, _ in runs]
    start_s = median(cell.engine_start_s for cell in cells if cell.engine_start_s)
    return float(recorded_run(path).summary["duration_s"]) + start_s


def verdicts(found: Sequence[Question], share: float) -> Iterator[tuple[str, bool]]:
    """Each goal in words, and whether it is reached."""
    near = [each for each in found if abs(each.steps) <= 1]
    exact = sum(each.steps == 0 for each in found)
    yield (
        f"the size that is advised is the right one in {exact} of {len(found)} questions, and at"
        f" most one step from it in {len(near)} (goal: 9 of 10)",
        len(near) >= LEAST_RIGHT * len(found),
    )
    wrong = [each for each in found if each.steps]
    flagged = sum(each.flagged for each in wrong)
    yield (
        f"of {len(wrong)} others the advice says itself in {flagged} that runs differ by more than"
        " decides it (goal: all)",
        flagged == len(wrong),
    )
    yield (
        f"the runs that advice needs took {share:.0%} of the sweep's time on engines (goal:"
        f" {MOST_TIME:.0%})",
        share <= MOST_TIME,
    )


def page(
    found: Sequence[Question], faults: Sequence[str], without: int, share: float, date: str
) -> Iterator[str]:
    """Markdown."""
    yield "# Advice against a sweep of every size\n"
    yield "What `kvswarm advise` picks, set against real engines of every size that it tried.\n"
    yield "```sh\nmake bench-advise\n```\n"
    yield f"Measured on {date} on {machine_line()}.\n"
    yield "## In short\n"
    for said, reached in verdicts(found, share):
        yield f"- {'Reached' if reached else 'Missed'}: {said}."
    yield (
        f"- {len(found)} questions: some traffic, an order and a limit. In {without} more the"
        f" largest cache was less than {LEAST_RANGE - 1:.0%} better than the smallest: no question."
    )
    yield from (f"- Left out: {each}." for each in faults)
    yield "\n## The questions\n"
    yield (
        "The twin saw a run of `kvswarm run calibrate` and one run of each workload with other"
        f" requests, and advice the run of the same requests on {GIVEN_SIZE:,} tokens of cache,"
        f" first come. Sizes are {SIZES[0]:,} to {SIZES[-1]:,} tokens, each about half as large"
        " again as the one before. A limit is half way, as a factor, between what the smallest and"
        " the largest give. Each size was measured once for the same requests: an engine that was"
        " slow in that minute moves what is right.\n"
    )
    yield "| workload | seed | order | limit | right | advised | steps | the advice doubts it |"
    yield "| --- | ---: | --- | --- | ---: | ---: | ---: | --- |"
    for each in found:
        picked = "none" if each.picked is None else f"{each.picked:,}"
        steps = "" if each.picked is None else f"{each.steps:+.0f}" if each.steps else "0"
        yield (
            f"| {each.workload} | {each.seed} | {ORDERS[each.by_context]} | {each.limit.text}"
            f" | {each.right:,} | {picked} | {steps} | {'yes' if each.flagged else 'no'} |"
        )


def judge(sweep: Path, given: Path, calibration: Path, report: Path | None) -> int:
    """Write what was found; 1 where a goal is missed."""
    found, faults, without = questions(sweep, given, calibration)
    asked_s = sum(
        cell.wall_s
        for runs in cells_of(sweep)[0].values()
        for cell, _ in runs
        if cell.axes["target"] == TARGETS[False] and cell.axes["kv-tokens"] == str(GIVEN_SIZE)
    )
    needed_s = engine_time_s(given) + run_time_s(calibration, sweep) + asked_s
    share = needed_s / engine_time_s(sweep)
    paths = [path for runs in cells_of(sweep)[0].values() for _, path in runs]
    begun_s = min(recorded_run(path).description["start_unix_s"] for path in paths)
    date = f"{datetime.fromtimestamp(begun_s, UTC):%Y-%m-%d from %H:%M UTC}"
    text = "\n".join(page(found, faults, without, share, date)) + "\n"
    sys.stdout.write(text)
    if report is not None:
        (report / PAGE).write_text(text, encoding="utf-8")
    return 0 if found and all(reached for _, reached in verdicts(found, share)) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cells = commands.add_parser("cells", help="write both sweeps")
    cells.add_argument("sweep", type=Path)
    cells.add_argument("given", type=Path)
    judged = commands.add_parser("judge", help="hold advice against them")
    judged.add_argument("sweep", type=Path)
    judged.add_argument("given", type=Path)
    judged.add_argument("calibration", type=Path)
    judged.add_argument("--report", type=Path, help="folder of the page")
    parsed = parser.parse_args()
    if parsed.command == "judge":
        return judge(parsed.sweep, parsed.given, parsed.calibration, parsed.report)
    parsed.sweep.write_text(definition("bench-advise", sweep_cells(), 2), "utf-8")
    parsed.given.write_text(definition("bench-advise-given", given_cells(), 1), "utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.exit(str(error))
