"""Swarms on engines of ours: this process runs the engines, processes below it run Locust."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadgen.errors import TargetError
from loadgen.launch.arguments import RunArguments
from loadgen.launch.label_service import label_service
from loadgen.launch.swarm_process import check_swarm, checked_labels, started_target, was_checked
from loadgen.launch.target_run import TargetRun, plan_target_runs
from loadgen.launch.terminal import Interruption, interruptible, say
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED, UNRECORDED, WRONG_USE
from loadgen.runs.json_file import read_json, value_at
from loadgen.scratch import scratch_folder
from loadgen.stats.summary import known_statistics
from loadgen.targets.service_group import ServiceGroup

PRECEDENCE = (UNRECORDED, TARGET_DIED, WRONG_USE, FAILED, SATURATED, DONE)


def run_supervised(command: str, run: RunArguments) -> int:
    """Run the swarm on each target in turn, one engine at a time, and set several side by side.

    Whatever becomes of one target, the next has its turn. Returns the worst of their exit codes,
    or 128 and the signal's number when a signal came before the last. Raises UsageError before
    anything is started.
    """
    target_runs = plan_target_runs(run)
    code = asyncio.run(_supervise(command, run, target_runs))
    if len(target_runs) > 1:
        print_comparison({each.spec.name: each.run.out for each in target_runs})
    return code


def worst(codes: Sequence[int]) -> int:
    """The exit code of several runs; one that is not ours, as of a killed process, comes first."""
    return min(codes, key=lambda code: PRECEDENCE.index(code) if code in PRECEDENCE else -1)


async def _supervise(command: str, run: RunArguments, target_runs: Sequence[TargetRun]) -> int:
    codes: list[int] = []
    with scratch_folder() as folder:
        with interruptible() as interruption:
            # One check is for all: their swarms differ in nothing but the directory.
            if code := await check_swarm(target_runs[0], folder, interruption):
                return code
            if not was_checked(folder):
                return DONE  # Locust did what it was asked for instead of a swarm, as with --list
            if interruption.signal_number:
                return 128 + interruption.signal_number
            async with AsyncExitStack() as stack:
                rag = None  # or one for all targets, where it is asked and nobody said which
                if (labels := checked_labels(folder)) is not None:
                    service = label_service(labels, target_runs[0], run.out / "engine")
                    rag = await stack.enter_async_context(service)
                while len(codes) < len(target_runs) and not interruption.signal_number:
                    target = target_runs[len(codes)]
                    await _run_on(target, command, rag, folder, interruption, codes)
        if len(codes) == len(target_runs):
            return worst(codes)
        return 128 + interruption.signal_number


async def _run_on(
    target_run: TargetRun,
    command: str,
    rag: ServiceGroup | None,
    folder: Path,
    interruption: Interruption,
    codes: list[int],
) -> None:
    """Start the target, run its swarm, stop it; a service that fails is told, not raised. The
    exit code is added to `codes`, and stays there whatever interrupts the stop."""
    try:
        if rag is not None:
            rag.check()
        say(f"starting {target_run.spec.name} …")
        async with started_target(target_run, folder, target_run.logs, rag) as started:
            codes.append(await started.run(command, target_run.run, interruption))
    except TargetError as error:
        say(str(error))
        codes.append(error.exit_code)


def print_comparison(runs: Mapping[str, Path]) -> None:
    """Print a column for each run; nothing where none was finished."""
    if any((path / "summary.json").is_file() for path in runs.values()):
        print()
        Console(highlight=False).print(side_by_side(runs))


def side_by_side(runs: Mapping[str, Path]) -> Table:
    """A column per run, a row per figure of its `summary.json`; `-` where a run has none."""
    summaries = {name: read_json(path / "summary.json") for name, path in runs.items()}
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    for title, form, place in ROWS:
        told = [_told(summary, place) for summary in summaries.values()]
        cells = ["-" if value is None else format(value, form) for value in told]
        if title not in OF_SOME or set(cells) != {"-"}:
            table.add_row(title, *cells)
    return table


def _told(summary: Mapping[str, Any], place: str) -> Any:
    """Labels without retrieval are right or wrong by design, and of few values no p95 is told."""
    if value_at(summary, NEEDED.get(place, place)) is None:
        return None
    metric, _, statistic = place.rpartition(".")
    if metric.startswith("metrics."):
        return known_statistics(value_at(summary, metric))[statistic]
    return value_at(summary, place)


OF_SOME = ("labels right", "retrieval p50 (ms)", "retrieval in TTFT", "within the objective")
"""Rows that are left out where no run has retrieved anything, or had an objective."""

NEEDED = {"label_accuracy": "refused_share"}

ROWS: tuple[tuple[str, str, str], ...] = (
    ("distinct contexts", "d", "diversity.distinct_contexts"),
    ("requests ok", "d", "outcomes.ok"),
    ("hit rate of the prefix cache", ".1%", "server.hit_rate"),
    ("prompt tokens computed", ",.0f", "server.computed_prompt_tokens"),
    ("labels right", ".1%", "label_accuracy"),
    ("retrieval p50 (ms)", ",.0f", "metrics.retrieval_ms.p50"),
    ("retrieval in TTFT", ".1%", "retrieval_share"),
    ("TTFT p50 (ms)", ",.0f", "metrics.ttft_ms.p50"),
    ("TTFT p95 (ms)", ",.0f", "metrics.ttft_ms.p95"),
    ("end-to-end p50 (ms)", ",.0f", "metrics.e2e_ms.p50"),
    ("makespan p50 (s)", ",.2f", "metrics.makespan_s.p50"),
    ("within the objective", ".1%", "goodput_share"),
    ("requests/s", ".1f", "requests_per_s"),
    ("output tokens/s", ".0f", "output_tokens_per_s"),
    ("tokens/s in and out", ".0f", "total_tokens_per_s"),
    ("most requests at once", "d", "peak_concurrency"),
)
