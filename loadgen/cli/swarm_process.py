"""The process below this one that runs Locust on an engine of ours."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.cli.arguments import RunArguments
from loadgen.cli.control import control_line
from loadgen.cli.interruption import Interruption
from loadgen.cli.leg import Leg
from loadgen.cli.target import swarm_facts, tokenizer_of
from loadgen.targets.capacity import model_window_tokens
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget

NO_HOST = "http://127.0.0.1:0"


async def check_swarm(leg: Leg, folder: Path, interruption: Interruption) -> int:
    """Have all options checked before the engine takes its time to start; 0 if they are right."""
    planned = {
        "tokenizer": tokenizer_of(leg.settings),
        "usable_tokens": leg.settings.kv_tokens,
        "max_model_len": _planned_window(leg.settings),
    }
    environment = _environment(folder, planned, None) | {"KVSWARM_CHECK": "1"}
    checked = replace(leg.run, host=NO_HOST, rest=_without_processes(leg.run.rest))
    return await _locust("run", checked, environment, interruption)


async def run_swarm(
    command: str, leg: Leg, target: RunningTarget, folder: Path, interruption: Interruption
) -> int:
    """Run the swarm on a started target; returns the exit code of the run."""
    async with control_line(target, folder / "control") as control:
        environment = _environment(folder, swarm_facts(target, leg.settings), control)
        run = replace(leg.run, host=target.url)
        return await _locust(command, run, environment, interruption)


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
