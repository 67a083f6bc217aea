"""Swarms on engines of ours: this process runs the engines, processes below it run Locust."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console

from loadgen.errors import TargetError
from loadgen.launch.arguments import RunArguments
from loadgen.launch.label_service import label_service
from loadgen.launch.swarm_process import check_swarm, run_swarm, was_checked, wished_labels
from loadgen.launch.target_run import Leg, plan_legs
from loadgen.launch.terminal import Interruption, interruptible, say
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED, WRONG_USE
from loadgen.runs.side_by_side import side_by_side
from loadgen.targets.rag_service import RunningRagService
from loadgen.targets.target import start_target

PRECEDENCE = (TARGET_DIED, WRONG_USE, FAILED, SATURATED, DONE)


def run_supervised(command: str, run: RunArguments) -> int:
    """Run the swarm on each target in turn, one engine at a time, and set several side by side.

    Whatever becomes of one target, the next has its turn. Returns the worst of their exit codes,
    or 128 and the signal's number when a signal came before the last. Raises UsageError before
    anything is started.
    """
    legs = plan_legs(run)
    code = asyncio.run(_supervise(command, run, legs))
    if len(legs) > 1:
        print_comparison({leg.spec.name: leg.run.out for leg in legs})
    return code


def worst(codes: Sequence[int]) -> int:
    """The exit code of several runs; one that is not ours, as of a killed process, comes first."""
    return min(codes, key=lambda code: PRECEDENCE.index(code) if code in PRECEDENCE else -1)


async def _supervise(command: str, run: RunArguments, legs: Sequence[Leg]) -> int:
    with tempfile.TemporaryDirectory(prefix="kvswarm-") as scratch:
        folder = Path(scratch)
        with interruptible() as interruption:
            # One check is for all: their swarms differ in nothing but the directory.
            if code := await check_swarm(legs[0], folder, interruption):
                return code
            if not was_checked(folder):
                return DONE  # Locust did what it was asked for instead of a swarm, as with --list
            if interruption.signal_number:
                return 128 + interruption.signal_number
            async with AsyncExitStack() as stack:
                rag = await _label_service(folder, run, legs[0], stack)
                codes: list[int] = []
                while len(codes) < len(legs) and not interruption.signal_number:
                    leg = legs[len(codes)]
                    codes.append(await _run_leg(command, leg, rag, folder, interruption))
            if len(codes) == len(legs):
                return worst(codes)
        return 128 + interruption.signal_number


async def _label_service(
    folder: Path, run: RunArguments, leg: Leg, stack: AsyncExitStack
) -> RunningRagService | None:
    """One service for all targets, where the swarm asks for labels and was not told whom."""
    wish = wished_labels(folder)
    if wish is None:
        return None
    return await stack.enter_async_context(label_service(wish, leg, run.out / "engine"))


async def _run_leg(
    command: str,
    leg: Leg,
    rag: RunningRagService | None,
    folder: Path,
    interruption: Interruption,
) -> int:
    """Start the target, run its swarm, stop it; a service that fails is told, not raised."""
    try:
        if rag is not None:
            rag.check()
        say(f"starting {leg.spec.name} …")
        async with start_target(leg.spec, leg.settings, leg.logs) as target:
            code = await run_swarm(command, leg, target, rag, folder, interruption)
            target.check()
            if rag is not None:
                rag.check()
            return code
    except TargetError as error:
        say(str(error))
        return error.exit_code


def print_comparison(runs: Mapping[str, Path]) -> None:
    """Print a column for each run; nothing where none was finished."""
    if any((path / "summary.json").is_file() for path in runs.values()):
        print()
        Console(highlight=False).print(side_by_side(runs))
