"""What a page says of its making: the command, the moment, the machine, the versions."""

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.runs.machine import machine, versions

if TYPE_CHECKING:
    from dashboards.studies.page import Provenance

PAGE, FOLDERS = ("-o", "--page"), ("--out", "--corpus", "--model", "--targets")


def told(arguments: list[str]) -> list[str]:
    """The command's words with folders by their last names, and without the place of its page,
    which changes no figure."""
    parts = [part for word in arguments for part in _split(word)]
    words: list[str] = []
    for before, word in pairwise(["", *parts]):
        if word not in PAGE and before not in PAGE:
            words.append(Path(word).name if before in FOLDERS else word)
    return words


def without_folders(arguments: list[str]) -> list[str]:
    """The command's words without where the study and its page lie."""
    parts = [part for word in arguments for part in _split(word)]
    places = (*PAGE, "--out")
    return [
        word
        for before, word in pairwise(["", *parts])
        if word not in places and before not in places
    ]


def _split(word: str) -> list[str]:
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag in (*PAGE, *FOLDERS) else [word]


def measured_now(command: str, packages: Iterable[str], at_s: float | None = None) -> "Provenance":
    """What was made by this command, here and now, or at this time since the epoch."""
    from dashboards.studies.page import Provenance, machine_words

    found = versions(packages)
    known = [f"{name} {found[name]}" for name in packages if name in found]
    return Provenance(
        command=command,
        when=time.strftime("on %Y-%m-%d at %H:%M UTC", time.gmtime(at_s)),
        machine=machine_words(machine()),
        versions=", ".join(known) or "unknown versions",
    )


def on_device(made: "Provenance", device: str) -> "Provenance":
    """With the GPU that computed it, if one did."""
    if device in ("", "cpu"):
        return made
    return replace(made, machine=f"one {device} in a machine of {made.machine}")
