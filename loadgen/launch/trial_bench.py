"""An engine, or a host of others, on which one run is made after the other."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.launch.arguments import RunArguments, find_locustfile, parse_run
from loadgen.launch.cell_check import ask_locust, last_line
from loadgen.launch.label_service import WishedLabels, label_service
from loadgen.launch.swarm_process import Quiet, control_line, labels_in, run_controlled, run_on_host
from loadgen.launch.target_run import Leg, plan_legs
from loadgen.launch.terminal import Interruption, say
from loadgen.sweep.table import SWARM_LOG
from loadgen.targets.rag_service import RunningRagService
from loadgen.targets.target import RunningTarget, start_target


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that may begin. `leg` is None on a host, `wish` where no service is to be started."""

    run: RunArguments
    leg: Leg | None
    wish: WishedLabels | None


def check_run(words: Sequence[str]) -> CheckedRun:
    """What `kvswarm run` would say to these words, without a run. Raises UsageError."""
    run = parse_run("run", list(words))
    if len(run.targets) > 1:
        raise UsageError(f"--target {','.join(run.targets)}: give one")
    file = find_locustfile(run.file)
    leg = plan_legs(run)[0] if run.targets else None
    (result,) = ask_locust(file, [(run, leg)])["results"]
    if result["code"]:
        said = result["said"].replace("\nDid you mean", "; did you mean")
        raise UsageError(last_line(said))
    if result["options"] is None:
        raise UsageError("no run would come of it, as with --list: leave that out")
    wish = labels_in(result["options"])
    if leg is None and wish is not None:
        raise UsageError(f"--labels {wish.labels} on a host needs --rag-url: say which service")
    return CheckedRun(run, leg, wish)


@dataclass(frozen=True, slots=True)
class TrialBench:
    """Runs on what is running. `scratch` is a folder of this process alone."""

    checked: CheckedRun
    scratch: Path
    interruption: Interruption
    engine: tuple[RunningTarget, Path] | None = None
    rag: RunningRagService | None = None

    async def run(self, words: Sequence[str], out: Path) -> int:
        """Make a run in `out`, which is there; returns its exit code. Raises TargetError where a
        service died."""
        run = parse_run("run", [*words, f"--out={out}"])
        quiet = Quiet(out / SWARM_LOG, ("kvswarm", "run", *words, f"--out={out}"))
        if self.engine is None or self.checked.leg is None:
            return await run_on_host(run, self.scratch, self.interruption, quiet)
        target, control = self.engine
        self._check()
        leg = replace(self.checked.leg, run=run)
        code = await run_controlled("run", leg, target, self.rag, control, self.interruption, quiet)
        self._check()
        return code

    def _check(self) -> None:
        assert self.engine is not None
        self.engine[0].check()
        if self.rag is not None:
            self.rag.check()


@asynccontextmanager
async def trial_bench(
    checked: CheckedRun, scratch: Path, logs: Path, interruption: Interruption
) -> AsyncIterator[TrialBench]:
    """Start the engine, and the RAG service where one is needed. Raises TargetError."""
    bench = TrialBench(checked, scratch, interruption)
    if checked.leg is None:
        yield bench
        return
    leg = checked.leg
    async with AsyncExitStack() as stack:
        rag = None
        if checked.wish is not None:
            rag = await stack.enter_async_context(label_service(checked.wish, leg, logs))
        say(f"starting {leg.spec.name} …")
        target = await stack.enter_async_context(start_target(leg.spec, leg.settings, logs))
        # One line for all runs: it knows whether the engine has served any of them.
        control = await stack.enter_async_context(control_line(target, scratch / "control"))
        yield replace(bench, engine=(target, control), rag=rag)
