"""Runs made one after the other on one engine of ours, or on a host of others."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from loadgen.launch.arguments import parse_run
from loadgen.launch.checking import CheckedRun, run_words
from loadgen.launch.label_service import label_service
from loadgen.launch.swarm_process import StartedTarget, SwarmLog, run_on_host, started_target
from loadgen.launch.terminal import Interruption, say
from loadgen.sweep.definition import Definition
from loadgen.sweep.matrix import CellEngine, SweepStep
from loadgen.sweep.runner import RunningEngine
from loadgen.sweep.table import SWARM_LOG


@dataclass(frozen=True, slots=True)
class RunSeries:
    """What runs are made on, None for a host. `scratch` is a folder of this process alone."""

    started: StartedTarget | None
    scratch: Path
    interruption: Interruption

    async def run(self, words: Sequence[str], out: Path) -> int:
        """Make a run of these words of `kvswarm run` in `out`, which is there.

        Returns its exit code. Raises TargetError where a service died.
        """
        run = parse_run("run", list(words))
        log = SwarmLog(out / SWARM_LOG, ("kvswarm", "run", *words))
        if self.started is None:
            return await run_on_host(run, self.scratch, self.interruption, log)
        return await self.started.run("run", run, self.interruption, log)


@asynccontextmanager
async def run_series(
    checked: CheckedRun, scratch: Path, logs: Path, interruption: Interruption, label: str = ""
) -> AsyncIterator[RunSeries]:
    """Start the engine, and the service where labels are asked of one. Raises TargetError."""
    if checked.target_run is None:
        yield RunSeries(None, scratch, interruption)
        return
    async with AsyncExitStack() as stack:
        rag = None
        if checked.labels is not None:
            service = label_service(checked.labels, checked.target_run, logs)
            rag = await stack.enter_async_context(service)
        say(f"starting {label or checked.target_run.spec.name} …")
        target = started_target(checked.target_run, scratch, logs, rag)
        yield RunSeries(await stack.enter_async_context(target), scratch, interruption)


@dataclass(frozen=True, slots=True)
class CellEngines:
    """Starts an engine for the cells of a sweep that share it."""

    definition: Definition
    cells: Mapping[str, CheckedRun]
    scratch: Path
    interruption: Interruption

    @asynccontextmanager
    async def start(
        self, engine: CellEngine, steps: Sequence[SweepStep], logs: Path
    ) -> AsyncIterator[RunningEngine]:
        """Run the engine for these steps. Raises TargetError."""
        checked = self.cells[steps[0].cell.cell_id]
        label = f"{engine.label} for {len(steps)} run" + ("s" if len(steps) > 1 else "")
        started = run_series(checked, self.scratch, logs, self.interruption, label)
        async with started as series:
            yield _CellRuns(self.definition, series)


@dataclass(frozen=True, slots=True)
class _CellRuns:
    definition: Definition
    series: RunSeries

    async def run(self, step: SweepStep, out: Path) -> int:
        """Make the run of a step. Raises TargetError where a service died."""
        return await self.series.run(run_words(self.definition, step.cell, step.seed, out), out)
