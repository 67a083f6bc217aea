"""Engines and swarms for the cells of a sweep."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.launch.arguments import parse_run
from loadgen.launch.cell_check import CheckedCell, run_words
from loadgen.launch.label_service import label_service
from loadgen.launch.swarm_process import Quiet, control_line, run_controlled, run_on_host
from loadgen.launch.target_run import Leg
from loadgen.launch.terminal import Interruption, say
from loadgen.sweep.definition import Definition
from loadgen.sweep.order import Engine, Step
from loadgen.sweep.runner import RunningEngine
from loadgen.sweep.table import SWARM_LOG
from loadgen.targets.rag_service import RunningRagService
from loadgen.targets.target import RunningTarget, start_target


@dataclass(frozen=True, slots=True)
class CellBench:
    """Starts an engine for cells that share it. `scratch` is a folder of this process alone."""

    definition: Definition
    cells: Mapping[str, CheckedCell]
    scratch: Path
    interruption: Interruption

    @asynccontextmanager
    async def start(
        self, engine: Engine, steps: Sequence[Step], logs: Path
    ) -> AsyncIterator[RunningEngine]:
        """Run the engine, and the service where its cells ask for labels. Raises TargetError."""
        cell = self.cells[steps[0].cell.cell_id]
        if cell.leg is None:
            yield _Host(self)
            return
        async with AsyncExitStack() as stack:
            rag = await self._rag(cell, logs, stack)
            runs = f"{len(steps)} run" + ("s" if len(steps) > 1 else "")
            say(f"starting {engine.label} for {runs} …")
            target = await stack.enter_async_context(
                start_target(cell.leg.spec, cell.leg.settings, logs)
            )
            # One line for all runs: it knows whether the engine has served any of them.
            line = control_line(target, self.scratch / "control")
            yield _Engine(self, target, rag, await stack.enter_async_context(line))

    async def _rag(
        self, cell: CheckedCell, logs: Path, stack: AsyncExitStack
    ) -> RunningRagService | None:
        if cell.wish is None or cell.leg is None:
            return None
        return await stack.enter_async_context(label_service(cell.wish, cell.leg, logs))

    def words(self, step: Step, out: Path) -> list[str]:
        """The command line of a run behind `kvswarm run`."""
        return run_words(self.definition, step.cell, step.seed, out)

    def leg(self, step: Step) -> Leg | None:
        """Its cell's, None on a host."""
        return self.cells[step.cell.cell_id].leg

    def quiet(self, step: Step, out: Path) -> Quiet:
        """Where its swarm's words go."""
        return Quiet(out / SWARM_LOG, ("kvswarm", "run", *self.words(step, out)))


@dataclass(frozen=True, slots=True)
class _Host:
    bench: CellBench

    async def run(self, step: Step, out: Path) -> int:
        """Make a run on a host that others keep."""
        run = parse_run("run", self.bench.words(step, out))
        bench = self.bench
        return await run_on_host(run, bench.scratch, bench.interruption, bench.quiet(step, out))


@dataclass(frozen=True, slots=True)
class _Engine:
    bench: CellBench
    target: RunningTarget
    rag: RunningRagService | None
    control: Path

    async def run(self, step: Step, out: Path) -> int:
        """Make a run on the engine. Raises TargetError where a service died."""
        bench, leg = self.bench, self.bench.leg(step)
        assert leg is not None
        if self.rag is not None:
            self.rag.check()
        leg = replace(leg, run=parse_run("run", bench.words(step, out)))
        code = await run_controlled(
            *("run", leg, self.target, self.rag, self.control, bench.interruption),
            bench.quiet(step, out),
        )
        self.target.check()
        if self.rag is not None:
            self.rag.check()
        return code
