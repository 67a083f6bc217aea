"""What a page says of its making: the command, the moment, the machine, the versions."""

import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.runs.machine import machine, versions

if TYPE_CHECKING:
    from dashboards.studies.page import Provenance

PAGE, FOLDERS = ("-o", "--page"), ("--out", "--corpus", "--model", "--targets")


def told(arguments: Sequence[str]) -> list[str]:
    """The command's words with folders by their last names, and without the place of its page,
    which changes no figure."""
    kept = _without(PAGE, arguments)
    return [Path(word).name if before in FOLDERS else word for before, word in kept]


def without_folders(arguments: Sequence[str]) -> list[str]:
    """The command's words without where the study and its page lie."""
    return [word for _, word in _without((*PAGE, "--out"), arguments)]


def _without(options: Collection[str], arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word behind the one before it, but these options and their values."""
    parts = [part for word in arguments for part in _split(word)]
    for before, word in pairwise(["", *parts]):
        if word not in options and before not in options:
            yield before, word


def _split(word: str) -> list[str]:
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag in (*PAGE, *FOLDERS) else [word]


def measured_now(
    words: Sequence[str], packages: Iterable[str], at_s: float | None = None, device: str = ""
) -> "Provenance":
    """What was made by this command, here and now, or at this time since the epoch; by the GPU of
    that name, if one computed it."""
    from dashboards.studies.page import Provenance, machine_words

    found, place = versions(packages), machine_words(machine())
    known = [f"{name} {found[name]}" for name in packages if name in found]
    return Provenance(
        command=shlex.join(words),
        when=time.strftime("on %Y-%m-%d at %H:%M UTC", time.gmtime(at_s)),
        machine=place if device in ("", "cpu") else f"one {device} in a machine of {place}",
        versions=", ".join(known) or "unknown versions",
    )
