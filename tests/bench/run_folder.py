"""The folder of a benchmark's run: CSV files, logs, and what the machine was."""

import sys
import time
from pathlib import Path

MACHINE_FILE = "machine.txt"


def new_folder(wanted: Path | None, name: str, machine: str) -> Path:
    """The folder asked for, which may hold rows of an earlier run, or one named by the time."""
    folder = wanted or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MACHINE_FILE).write_text(machine, encoding="utf-8")
    return folder


def machine_of(folder: Path) -> str:
    """What the machine was; ends the program with a line where there was no run."""
    if not (folder / MACHINE_FILE).is_file():
        sys.exit(f"{folder} holds no run of this benchmark: name one with {MACHINE_FILE}")
    return (folder / MACHINE_FILE).read_text(encoding="utf-8").strip()
