"""Many short runs on a real vLLM: identical ones, and some on an engine made slower."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.launch.arguments import parse_run
from loadgen.launch.swarm_process import started_target
from loadgen.launch.target_run import plan_target_runs
from loadgen.launch.terminal import Interruption
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import read_json

USABLE_CODES = (0,)
"""Of any other run compare decides nothing."""
LATE_CODE, ATTEMPTS = 5, 8
"""A run whose client was late is made again, as whoever waits for a gate would do."""
TARGET = ("--target", "vllm", "--kv-tokens", "20480")
WORKLOAD = (
    *("--contexts", "4", "--context-tokens", "400", "--output-tokens", "2-6"),
    *("-u", "8", "-r", "8", "--warmup", "2", "--max-lag-ms", "300"),
)
"""Short answers make many requests, and many there must be for a p95. They have unlike lengths: of
users in step eight requests would be alike. The first prefills, of cold caches, are left out. An
engine on the client's cores makes it late by 0.1 s now and then; a gate has to bear that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many runs of each kind. The first `noise` identical ones measure the spread between
    runs; the other `runs` are paired, each with the next `reach` on the same engine, and each of
    the `slow` ones with one more of them."""

    out: Path
    noise: int
    runs: int
    slow: int
    reach: int
    seconds: int
    served: int
    """Of eight users, whom the slow engine serves at a time; no request is computed more slowly."""

    @property
    def identical_folders(self) -> list[Path]:
        """Directories of identical runs, in the order in which they are made."""
        return [self.out / "identical" / f"{n:03d}" for n in range(self.noise + self.runs)]

    @property
    def slow_folders(self) -> list[Path]:
        """Directories of the runs on the slow engine."""
        return [self.out / "slow" / f"{n:03d}" for n in range(self.slow)]

    @property
    def phases(self) -> tuple[tuple[tuple[str, ...], Sequence[Path]], ...]:
        """Engine settings and the runs on such an engine: the slow one comes in the middle, so
        that a drift of the machine does not look like its effect."""
        slow = ("--engine-arg=--max-num-seqs", f"--engine-arg={self.served}")
        half, identical = self.noise + self.runs // 2, self.identical_folders
        return (((), identical[:half]), (slow, self.slow_folders), ((), identical[half:]))


def is_done(directory: Path) -> bool:
    """Whether there is a usable run in it."""
    return read_json(directory / RUN_JSON).get("exit_code") in USABLE_CODES


async def make_runs(plan: Plan, interruption: Interruption) -> None:
    """Make what is still missing, a phase at a time. Raises RuntimeError when a run fails."""
    for number, (settings, directories) in enumerate(plan.phases):
        missing = [directory for directory in directories if not is_done(directory)]
        if missing and not interruption.signal_number:
            say(f"phase {number + 1} of {len(plan.phases)}: {len(missing)} runs, {settings}")
            await _phase(plan, settings, missing, interruption)


async def _phase(
    plan: Plan, settings: Sequence[str], missing: Sequence[Path], interruption: Interruption
) -> None:
    words = [*TARGET, *settings, *WORKLOAD, "-t", f"{plan.seconds}s", "--out", str(plan.out)]
    (target_run,) = plan_target_runs(parse_run("run", words))
    with tempfile.TemporaryDirectory(prefix="kvswarm-") as scratch:
        async with started_target(target_run, Path(scratch), target_run.logs) as target:
            for directory in missing:
                if interruption.signal_number:
                    return
                code = LATE_CODE
                for _ in range(ATTEMPTS):
                    shutil.rmtree(directory, ignore_errors=True)
                    here = replace(target_run.run, out=directory)
                    code = await target.run("run", here, interruption)
                    if code != LATE_CODE or interruption.signal_number:
                        break
                if code not in USABLE_CODES and not interruption.signal_number:
                    raise RuntimeError(f"the run in {directory} ended with {code}")
                await asyncio.sleep(0)


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
