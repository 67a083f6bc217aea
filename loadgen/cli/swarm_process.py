"""The process below this one that runs Locust on an engine of ours."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.cli.arguments import RunArguments
from loadgen.cli.control import control_line
from loadgen.cli.interruption import Interruption
from loadgen.cli.leg import Leg
from loadgen.cli.target import swarm_facts, tokenizer_of
from loadgen.targets.capacity import model_window_tokens
from loadgen.targets.rag_service import RunningRagService
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget

NO_HOST = "http://127.0.0.1:0"
CHECKED = "checked.json"
"""Into it the check writes the options as the swarm will see them."""


async def check_swarm(leg: Leg, folder: Path, interruption: Interruption) -> int:
    """Have all options checked before the engine takes its time to start; 0 if they are right."""
    planned = {
        "tokenizer": tokenizer_of(leg.settings),
        "usable_tokens": leg.settings.kv_tokens,
        "max_model_len": _planned_window(leg.settings),
    }
    environment = _environment(folder, planned, None) | {"KVSWARM_CHECK": str(folder / CHECKED)}
    checked = replace(leg.run, host=NO_HOST, rest=_without_processes(leg.run.rest))
    return await _locust("run", checked, environment, interruption)


@dataclass(frozen=True, slots=True)
class WishedRetrieval:
    """A swarm that retrieves from these documents, None for the demo corpus."""

    corpus: Path | None


def was_checked(folder: Path) -> bool:
    """Whether the check came as far as the options."""
    return (folder / CHECKED).is_file()


def wished_retrieval(folder: Path) -> WishedRetrieval | None:
    """What the check found of it in the options; None where no service need be started."""
    options = json.loads((folder / CHECKED).read_text(encoding="utf-8"))
    if options["labels"] != "rag" or options["rag_url"]:
        return None
    return WishedRetrieval(Path(options["corpus"]) if options["corpus"] else None)


async def run_swarm(
    command: str,
    leg: Leg,
    target: RunningTarget,
    rag: RunningRagService | None,
    folder: Path,
    interruption: Interruption,
) -> int:
    """Run the swarm on a started target; returns the exit code of the run."""
    async with control_line(target, folder / "control") as control:
        environment = _environment(folder, swarm_facts(target, leg.settings), control)
        rest = leg.run.rest if rag is None else (*leg.run.rest, "--rag-url", rag.url)
        run = replace(leg.run, host=target.url, rest=rest)
        needed = rag if command == "run" else None
        return await _locust(command, run, environment, interruption, needed)


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
    command: str,
    run: RunArguments,
    environment: dict[str, str],
    interruption: Interruption,
    needed: RunningRagService | None = None,
) -> int:
    """Run Locust to its end, which is also that of the service that it needs."""
    arguments = [command, run.file, "--host", str(run.host), "--out", str(run.out), *run.rest]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.cli.main", *arguments, env=environment
    )
    interruption.handler = lambda number: _pass_on(process, number)
    watch = asyncio.create_task(_end_with(needed, process))
    try:
        code = await process.wait()
    finally:
        watch.cancel()
        interruption.handler = None
    return code if code >= 0 else 128 - code


async def _end_with(needed: RunningRagService | None, process: asyncio.subprocess.Process) -> None:
    if needed is not None:
        await needed.wait_died()
        with suppress(ProcessLookupError):
            process.terminate()


def _pass_on(process: asyncio.subprocess.Process, number: int) -> None:
    """Hand a signal to the swarm; Ctrl-C in a terminal has reached it already."""
    if number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty():
        return
    with suppress(ProcessLookupError):
        process.send_signal(number)
