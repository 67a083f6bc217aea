"""What lies at a path, asked so that no error of the file system is a traceback."""

import stat
from enum import Enum
from pathlib import Path

from rag_store.errors import CorpusError


class Place(Enum):
    """What a path leads to, through any links; OTHER is a device, a socket or a FIFO."""

    NOTHING = "nothing"
    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


def place_of(path: Path) -> Place:
    """What lies there. Raises CorpusError where that cannot be known."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Place.NOTHING
    except OSError as error:
        raise CorpusError(
            f"cannot read {path}: {error.strerror}: name one that can be read"
        ) from error
    if stat.S_ISDIR(mode):
        return Place.FOLDER
    return Place.FILE if stat.S_ISREG(mode) else Place.OTHER


def file_at(path: Path) -> Path:
    """The path, where a file lies there that ends: nobody may write into a FIFO that was found.

    Raises CorpusError.
    """
    if place_of(path) is not Place.FILE:
        raise CorpusError(f"{path} is no regular file: put one there, or remove it")
    return path


def listing(folder: Path) -> list[Path]:
    """What lies in the folder, sorted by name. Raises CorpusError."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise CorpusError(
            f"cannot read {folder}: {error.strerror}: name a folder that can be read"
        ) from error
