"""Files that are whole or not there, and temporary folders that go with their process, or at the
next start where it was killed.

A folder holds a locked file for as long as its owner lives, whoever can see its process id.
"""

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "kvswarm-"
OWNER = ".owner"
"""The locked file; it names what else has to go with the folder."""


def without_device(path: Path) -> Path:
    """The path of a file to be read, unless a device lies there, which may never end.

    Raises OSError.
    """
    if path.is_char_device():
        raise OSError(errno.EINVAL, "it is a device, and no file", str(path))
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of which no reader sees a part; an earlier one keeps its mode, and what fails
    leaves it as it was, with nothing beside it. Raises OSError."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        partial.write_bytes(content)
        with suppress(OSError):
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def expanded(path: str | Path) -> Path:
    """With `~` replaced; as it is, where no file can be, for a user that the system has not."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@contextmanager
def scratch_folder(
    *with_it: Path, place: Path | None = None, prefix: str = PREFIX
) -> Iterator[Path]:
    """An empty folder until the exit; what killed processes have left is swept away first.

    It is made in `place`, by default where temporary files go. Those `with_it` that are in the
    same place would be swept with it.
    """
    place = place or Path(tempfile.gettempdir())
    sweep(place, prefix)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    # Locked before it has its name: nobody can find it without an owner.
    with (path / "new").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("\n".join(map(str, with_it)))
        file.flush()
        (path / "new").rename(path / OWNER)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def sweep(place: Path, prefix: str = PREFIX) -> None:
    """Remove the folders of this user in `place` whose owners are gone."""
    for owner in place.glob(f"{prefix}*/{OWNER}"):
        with suppress(OSError):
            if owner.stat().st_uid == os.getuid():
                _sweep(owner, place, prefix)


def _sweep(owner: Path, place: Path, prefix: str) -> None:
    with owner.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError where it lives
        for with_it in map(Path, file.read().split("\n")):
            if with_it.parent == place and with_it.name.startswith(prefix):
                shutil.rmtree(with_it, ignore_errors=True)
        shutil.rmtree(owner.parent, ignore_errors=True)
