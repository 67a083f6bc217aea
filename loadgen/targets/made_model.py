"""The folder of a model that is made here: whole under its name, or not there.

It is written beside its place and renamed. A mark inside says what it is and how long each of its
files is, so that a copy which was cut short is not taken for it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.scratch import scratch_folder

PREFIX = ".kvswarm-model-"
BYTES = "bytes"


def made_once(
    directory: Path, mark: str, identity: Mapping[str, Any], write: Callable[[Path], None]
) -> Path:
    """`directory` with the model `identity`; `write` makes its files in an empty folder.

    The file `mark` is written here. Whoever makes the same at the same time gets the one that was
    first. Raises UsageError for a directory that cannot be written or holds something else.
    """
    if is_whole(directory, mark, identity):
        return directory
    _refuse_foreign(directory, mark)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(place=directory.parent, prefix=PREFIX) as scratch:
            made = scratch / "made"
            made.mkdir()
            write(made)
            _write_mark(made, mark, identity)
            if directory.exists():  # of another recipe, or damaged
                directory.rename(scratch / "old")
            made.rename(directory)
    except OSError as error:
        if not is_whole(directory, mark, identity):
            raise UsageError(f"cannot write a model to {directory}: {error.strerror}") from error
    return directory


def is_whole(directory: Path, mark: str, identity: Mapping[str, Any]) -> bool:
    """Whether the model is there as `identity` names it, with all files as long as they were."""
    try:
        found = json.loads((directory / mark).read_text(encoding="utf-8"))
        sizes = found.pop(BYTES)
        is_long = all((directory / name).stat().st_size == size for name, size in sizes.items())
        return bool(is_long and found == identity)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_mark(made: Path, mark: str, identity: Mapping[str, Any]) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
    text = json.dumps({**identity, BYTES: sizes}, indent=2, ensure_ascii=False)
    (made / mark).write_text(text + "\n", encoding="utf-8")


def _refuse_foreign(directory: Path, mark: str) -> None:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name a directory for the model")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / mark).is_file():
        raise UsageError(f"{directory} holds other files: name a new or empty directory")
