"""The process below this one that runs Locust on an engine of ours."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.errors import TargetError
from loadgen.launch.arguments import RunArguments
from loadgen.launch.label_service import ServiceLabels
from loadgen.launch.target_run import TargetRun, swarm_facts, tokenizer_of
from loadgen.launch.terminal import Interruption, awaited
from loadgen.runs.directory import recording
from loadgen.targets.hardware import CONTROL
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.settings import TargetSettings, model_window_tokens
from loadgen.targets.target import RunningTarget, start_target

NO_HOST = "http://127.0.0.1:0"
CHECKED = "checked.json"
"""Into it the check writes the options as the swarm will see them."""


async def check_swarm(target_run: TargetRun, folder: Path, interruption: Interruption) -> int:
    """Have all options checked before the engine takes its time to start; 0 if they are right."""
    environment = _environment(folder, planned_facts(target_run), None)
    environment["KVSWARM_CHECK"] = str(folder / CHECKED)
    return await _locust("run", checkable(target_run.run), environment, interruption)


def planned_facts(target_run: TargetRun) -> dict[str, Any]:
    """What a check has to know of a target that is not started yet."""
    settings, spec = target_run.settings, target_run.spec
    bounds = (model_window_tokens(settings.model), settings.kv_tokens)
    return {
        "router": settings.router if spec.of_role("router") else None,
        "body": dict(spec.body),
        "tokenizer": tokenizer_of(settings),
        "usable_tokens": settings.kv_tokens,
        "max_model_len": min((each for each in bounds if each is not None), default=None),
    }


def checkable(run: RunArguments) -> RunArguments:
    """The run as it is checked, without a host and without workers."""
    return replace(run, host=run.host or NO_HOST, rest=_without_processes(run.rest))


def was_checked(folder: Path) -> bool:
    """Whether the check came as far as the options."""
    return (folder / CHECKED).is_file()


def checked_labels(folder: Path) -> ServiceLabels | None:
    """What the check found of it in the options; None where no service need be started."""
    return labels_in(json.loads((folder / CHECKED).read_text(encoding="utf-8")))


def labels_in(options: Mapping[str, Any]) -> ServiceLabels | None:
    """The same of options that were checked."""
    labels = options["labels"]
    if labels not in ("rag", "kv") or options["rag_url"]:
        return None
    corpus, questions = (
        Path(options[name]) if options.get(name) else None for name in ("corpus", "questions")
    )
    return ServiceLabels(corpus, labels, questions if labels == "kv" else None)


@dataclass(frozen=True, slots=True)
class SwarmLog:
    """A swarm whose words go into `file`, and whose run is told to be of this command line."""

    file: Path
    command_line: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartedTarget:
    """An engine of ours on which swarms run in turn, and the service they ask for labels.

    One control line is for all of them: it knows whether the engine has served any.
    """

    target: RunningTarget
    settings: TargetSettings
    control: Path
    rag: ServiceGroup | None

    async def run(
        self,
        command: str,
        run: RunArguments,
        interruption: Interruption,
        log: SwarmLog | None = None,
    ) -> int:
        """Run a swarm; returns its exit code. Raises TargetError where a service has died, at the
        end only where the others need it."""
        self.target.check_whole()
        self._check()
        rest = run.rest if self.rag is None else (*run.rest, "--rag-url", self.rag.url)
        # A file of Locust's may have the same word.
        if run.target_arguments.model is not None or self.target.is_named:
            rest = (*rest, "--model", self.target.model)
        facts = swarm_facts(self.target, self.settings)
        code = await _locust(
            command,
            replace(run, host=self.target.url, rest=rest),
            _environment(
                self.control.parent, facts, self.control, log, start_s=self.target.longest_start_s
            ),
            interruption,
            needed=self.rag if command == "run" else None,
            log=log,
        )
        self._check()
        return code

    def _check(self) -> None:
        self.target.check()
        if self.rag is not None:
            self.rag.check()


@asynccontextmanager
async def started_target(
    target_run: TargetRun, scratch: Path, logs: Path, rag: ServiceGroup | None = None
) -> AsyncIterator[StartedTarget]:
    """Start an engine; `scratch` is a folder of this process alone. Raises TargetError."""
    settings = target_run.settings
    async with (
        awaited(
            start_target(target_run.spec, settings, logs), target_run.spec.name, logs
        ) as target,
        control_line(target, scratch / CONTROL) as control,
    ):
        yield StartedTarget(target, settings, control, rag)


async def run_on_host(
    run: RunArguments, folder: Path, interruption: Interruption, log: SwarmLog
) -> int:
    """Run the swarm on a host that is not ours; returns the exit code of the run."""
    return await _locust("run", run, _environment(folder, {}, None, log), interruption, log=log)


def _without_processes(rest: tuple[str, ...]) -> tuple[str, ...]:
    """Workers would only have to be ended again."""
    left = list(rest)
    while "--processes" in left:
        at = left.index("--processes")
        del left[at : at + 2]
    return tuple(argument for argument in left if not argument.startswith("--processes="))


def _environment(
    folder: Path,
    facts: Mapping[str, Any],
    control: Path | None,
    log: SwarmLog | None = None,
    *,
    start_s: float = 0.0,
) -> dict[str, str]:
    path = folder / "target.json"
    wire = {
        "facts": dict(facts),
        "control": str(control) if control else None,
        "command_line": log.command_line if log else sys.argv,
        "start_s": start_s,
    }
    with recording(folder):
        path.write_text(json.dumps(wire), encoding="utf-8")
    view = {"KVSWARM_VIEW": ""} if log else {}
    return {**os.environ, **view, "KVSWARM_TARGET": str(path)}


async def _locust(
    command: str,
    run: RunArguments,
    environment: dict[str, str],
    interruption: Interruption,
    needed: ServiceGroup | None = None,
    log: SwarmLog | None = None,
) -> int:
    """Run Locust to its end, which is also that of the service that it needs."""
    arguments = [command, run.file, "--host", str(run.host), "--out", str(run.out), *run.rest]
    with log.file.open("ab") if log else nullcontext() as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.cli.main", *arguments),
            env=environment,
            stdout=output,
            stderr=output,
        )
    watch = asyncio.create_task(_end_with(needed, process))
    try:
        return await _ended(process, interruption)
    finally:
        watch.cancel()


async def command_run(words: Sequence[str], interruption: Interruption) -> int:
    """Have `kvswarm` do this in a process of its own, whose results nobody reads. Returns its exit
    code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli.main", *words), stdout=asyncio.subprocess.DEVNULL
    )
    return await _ended(process, interruption)


async def _ended(process: asyncio.subprocess.Process, interruption: Interruption) -> int:
    """Wait for a process, which gets our signals; its exit code as a shell has it."""
    interruption.handler = lambda number: _send(process, number)
    try:
        code = await process.wait()
    finally:
        interruption.handler = None
    return code if code >= 0 else 128 - code


async def _end_with(needed: ServiceGroup | None, process: asyncio.subprocess.Process) -> None:
    if needed is not None:
        await needed.wait_died()
        _send(process, signal.SIGTERM)


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    """Hand a signal to the swarm, which passes over a second one: a Ctrl-C in a terminal reaches
    both. Not by the methods of the process, which look first whether it has just ended: they would
    take its exit code, and asyncio, which then finds none, says 255."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


class TargetKeeper:
    """Knows whether the target has served a swarm since its caches were last empty, and which of
    its engines have died."""

    def __init__(self, target: RunningTarget) -> None:
        self._target = target
        self._touched = False
        self._emptying = asyncio.Lock()

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"op": "cold"}` empties the caches, `{"op": "warm"}` keeps them, `{"op": "deaths"}` asks
        which engines have died."""
        if question.get("op") == "deaths":
            return self._deaths()
        try:
            if question.get("op") == "cold":
                async with self._emptying:  # one restart at a time
                    state = await self._target.make_cold(self._touched)
            else:
                self._target.check_whole()
                state = "warm" if self._touched else "cold"
            self._touched = True
        except TargetError as error:
            return {"error": str(error)}
        # A restart made other processes of it.
        return {"cache_state": state, "facts": self._target.facts()}

    def _deaths(self) -> dict[str, Any]:
        """With the `fault` for which the target serves no more, None where it does."""
        fault = None
        try:
            self._target.check()
        except TargetError as error:
            fault = str(error)
        return {"deaths": [asdict(each) for each in self._target.deaths], "fault": fault}


@asynccontextmanager
async def control_line(target: RunningTarget, path: Path) -> AsyncIterator[Path]:
    """Answer on a Unix socket at `path` until the exit, at which what is not answered ends."""
    keeper = TargetKeeper(target)
    answering: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await keeper.answer(json.loads(await reader.readline() or b"{}"))
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        answering.add(task)
        task.add_done_callback(answering.discard)

    server = await asyncio.start_unix_server(begin, str(path))
    try:
        yield path
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
