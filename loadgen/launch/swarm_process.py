"""The process below this one that runs Locust on an engine of ours."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.errors import TargetError
from loadgen.launch.arguments import RunArguments
from loadgen.launch.label_service import WishedLabels
from loadgen.launch.target_run import Leg, swarm_facts, tokenizer_of
from loadgen.launch.terminal import Interruption
from loadgen.targets.model_config import model_window_tokens
from loadgen.targets.rag_service import RunningRagService
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget

NO_HOST = "http://127.0.0.1:0"
CHECKED = "checked.json"
"""Into it the check writes the options as the swarm will see them."""


async def check_swarm(leg: Leg, folder: Path, interruption: Interruption) -> int:
    """Have all options checked before the engine takes its time to start; 0 if they are right."""
    environment = _environment(folder, planned_facts(leg.settings), None)
    environment["KVSWARM_CHECK"] = str(folder / CHECKED)
    return await _locust("run", checkable(leg.run), environment, interruption)


def planned_facts(settings: TargetSettings) -> dict[str, Any]:
    """What a check has to know of a target that is not started yet."""
    return {
        "tokenizer": tokenizer_of(settings),
        "usable_tokens": settings.kv_tokens,
        "max_model_len": _planned_window(settings),
    }


def checkable(run: RunArguments) -> RunArguments:
    """The run as it is checked, without a host and without workers."""
    return replace(run, host=run.host or NO_HOST, rest=_without_processes(run.rest))


def was_checked(folder: Path) -> bool:
    """Whether the check came as far as the options."""
    return (folder / CHECKED).is_file()


def wished_labels(folder: Path) -> WishedLabels | None:
    """What the check found of it in the options; None where no service need be started."""
    return labels_in(json.loads((folder / CHECKED).read_text(encoding="utf-8")))


def labels_in(options: Mapping[str, Any]) -> WishedLabels | None:
    """The same of options that were checked."""
    labels = options["labels"]
    if labels not in ("rag", "kv") or options["rag_url"]:
        return None
    corpus, questions = (
        Path(options[name]) if options.get(name) else None for name in ("corpus", "questions")
    )
    return WishedLabels(corpus, labels, questions if labels == "kv" else None)


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
        return await run_controlled(command, leg, target, rag, control, interruption)


@dataclass(frozen=True, slots=True)
class Quiet:
    """A swarm whose words go into `log`, and whose run is told to be of this command line."""

    log: Path
    command_line: tuple[str, ...]


async def run_controlled(
    command: str,
    leg: Leg,
    target: RunningTarget,
    rag: RunningRagService | None,
    control: Path,
    interruption: Interruption,
    quiet: Quiet | None = None,
) -> int:
    """The same where a control line is open, which several swarms may use in turn."""
    facts = swarm_facts(target, leg.settings)
    environment = _environment(control.parent, facts, control, quiet)
    rest = leg.run.rest if rag is None else (*leg.run.rest, "--rag-url", rag.url)
    run = replace(leg.run, host=target.url, rest=rest)
    needed = rag if command == "run" else None
    return await _locust(command, run, environment, interruption, needed, quiet)


async def run_on_host(
    run: RunArguments, folder: Path, interruption: Interruption, quiet: Quiet
) -> int:
    """Run the swarm on a host that is not ours; returns the exit code of the run."""
    return await _locust(
        "run", run, _environment(folder, {}, None, quiet), interruption, quiet=quiet
    )


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


def _environment(
    folder: Path, facts: Mapping[str, Any], control: Path | None, quiet: Quiet | None = None
) -> dict[str, str]:
    path = folder / "target.json"
    wire = {
        "facts": dict(facts),
        "control": str(control) if control else None,
        "command_line": quiet.command_line if quiet else sys.argv,
    }
    path.write_text(json.dumps(wire), encoding="utf-8")
    view = {"KVSWARM_VIEW": ""} if quiet else {}
    return {**os.environ, **view, "KVSWARM_TARGET": str(path)}


async def _locust(
    command: str,
    run: RunArguments,
    environment: dict[str, str],
    interruption: Interruption,
    needed: RunningRagService | None = None,
    quiet: Quiet | None = None,
) -> int:
    """Run Locust to its end, which is also that of the service that it needs."""
    arguments = [command, run.file, "--host", str(run.host), "--out", str(run.out), *run.rest]
    with quiet.log.open("ab") if quiet else nullcontext() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.cli.main", *arguments),
            env=environment,
            stdout=log,
            stderr=log,
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


class CacheKeeper:
    """Knows whether the target has served a swarm since its caches were last empty."""

    def __init__(self, target: RunningTarget) -> None:
        self._target = target
        self._touched = False

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"op": "cold"}` empties the caches, `{"op": "warm"}` keeps them."""
        try:
            if question.get("op") == "cold":
                state = await self._target.make_cold()
            else:
                state = "warm" if self._touched else "cold"
            self._touched = True
        except TargetError as error:
            return {"error": str(error)}
        return {"cache_state": state}


@asynccontextmanager
async def control_line(target: RunningTarget, path: Path) -> AsyncIterator[Path]:
    """Answer on a Unix socket at `path` until the exit."""
    keeper = CacheKeeper(target)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await keeper.answer(json.loads(await reader.readline() or b"{}"))
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield path
    finally:
        server.close()
