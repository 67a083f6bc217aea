"""A swarm on an engine of ours: this process runs the engine, one below it runs Locust."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.cli.arguments import RunArguments
from loadgen.cli.control import control_line
from loadgen.cli.interruption import Interruption, interruptible
from loadgen.cli.locustfile import find_locustfile
from loadgen.cli.target import (
    choose_target,
    swarm_facts,
    target_settings,
    tokenizer_of,
)
from loadgen.errors import TargetError
from loadgen.runs.exit_code import DONE, FAILED, SATURATED
from loadgen.targets.capacity import model_window_tokens
from loadgen.targets.catalog import TargetSpec
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget, start_target

NO_HOST = "http://127.0.0.1:0"


def run_supervised(command: str, run: RunArguments) -> int:
    """Start the target, run the swarm, stop the target; the exit code is the swarm's, or 3."""
    return run_in_turn(command, [run], run.out / "engine")


def run_in_turn(command: str, runs: Sequence[RunArguments], logs: Path) -> int:
    """Run swarms one after the other on one started target, each from cold caches.

    Returns the first exit code that is not 0; a run that is over goes on to the next, whatever
    it found. Raises UsageError before anything is started, and
    TargetError when the target cannot be started.
    """
    first = runs[0]
    find_locustfile(first.file)
    spec = choose_target(first.target or "", first.target_arguments)
    settings = target_settings(first.target_arguments)
    return asyncio.run(_supervise(command, runs, spec, settings, logs))


async def _supervise(
    command: str,
    runs: Sequence[RunArguments],
    spec: TargetSpec,
    settings: TargetSettings,
    logs: Path,
) -> int:
    with tempfile.TemporaryDirectory(prefix="kvswarm-") as scratch:
        folder = Path(scratch)
        with interruptible() as interruption:
            for run in runs:
                if code := await _check(run, settings, folder, interruption):
                    return code
            print(f"kvswarm: starting {spec.name} …", file=sys.stderr, flush=True)
            async with start_target(spec, settings, logs) as target:
                codes = []
                for run in runs:
                    code = await _swarm(command, run, target, settings, folder, interruption)
                    codes.append(code)
                    if code not in (DONE, FAILED, SATURATED):
                        break
                return next((code for code in codes if code), DONE)
        return 128 + interruption.signal_number


async def _check(
    run: RunArguments,
    settings: TargetSettings,
    folder: Path,
    interruption: Interruption,
) -> int:
    """Let a swarm's process check all options before the engine takes its time to start."""
    planned = {
        "tokenizer": tokenizer_of(settings),
        "usable_tokens": settings.kv_tokens,
        "max_model_len": _planned_window(settings),
    }
    environment = _environment(folder, planned, None) | {"KVSWARM_CHECK": "1"}
    checked = replace(run, host=NO_HOST, rest=_without_processes(run.rest))
    return await _locust("run", checked, environment, interruption)


def _without_processes(rest: tuple[str, ...]) -> tuple[str, ...]:
    """Workers would only have to be ended again."""
    left = list(rest)
    while "--processes" in left:
        at = left.index("--processes")
        del left[at : at + 2]
    return tuple(argument for argument in left if not argument.startswith("--processes="))


def _planned_window(settings: TargetSettings) -> int | None:
    window = model_window_tokens(settings.model)
    bounds = [bound for bound in (window, settings.kv_tokens) if bound is not None]
    return min(bounds, default=None)


async def _swarm(
    command: str,
    run: RunArguments,
    target: RunningTarget,
    settings: TargetSettings,
    folder: Path,
    interruption: Interruption,
) -> int:
    async with control_line(target, folder / "control") as control:
        environment = _environment(folder, swarm_facts(target, settings), control)
        code = await _locust(command, replace(run, host=target.url), environment, interruption)
    try:
        target.check()
    except TargetError as error:
        print(f"kvswarm: {error}", file=sys.stderr)
        return error.exit_code
    return code


def _environment(folder: Path, facts: Mapping[str, Any], control: Path | None) -> dict[str, str]:
    path = folder / "target.json"
    wire = {
        "facts": dict(facts),
        "control": str(control) if control else None,
        "command_line": sys.argv,
    }
    path.write_text(json.dumps(wire), encoding="utf-8")
    return {**os.environ, "KVSWARM_TARGET": str(path)}


async def _locust(
    command: str, run: RunArguments, environment: dict[str, str], interruption: Interruption
) -> int:
    arguments = [command, run.file, "--host", str(run.host), "--out", str(run.out), *run.rest]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.cli.main", *arguments, env=environment
    )
    interruption.handler = lambda number: _pass_on(process, number)
    try:
        code = await process.wait()
    finally:
        interruption.handler = None
    return code if code >= 0 else 128 - code


def _pass_on(process: asyncio.subprocess.Process, number: int) -> None:
    """Hand a signal to the swarm; Ctrl-C in a terminal has reached it already."""
    if number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty():
        return
    with suppress(ProcessLookupError):
        process.send_signal(number)
