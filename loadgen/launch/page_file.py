"""The file of a page: `report.html`, of runs, of a sweep or of a search."""

import os
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.launch.terminal import say, tell
from loadgen.scratch import write_whole
from loadgen.sweep.folder import SWEEP_JSON
from rag_store.extras import install_command

FILE_NAME = "report.html"


def draw_series(folder: Path) -> None:
    """Write the page of a sweep or a search into its folder, and tell where; only say so where
    there is none: the runs are made, and how they ended is the exit code."""
    try:
        if page := page_of_series(folder):
            tell(f"Page: {write_page(folder / FILE_NAME, page)}")
    except ModuleNotFoundError as error:
        say(
            f"no page: {error.name} is not installed. After {install_command('report')}"
            f" `kvswarm report {folder}` makes it"
        )
    except UsageError as error:
        say(f"no page: {error}")
    except Exception as error:  # a fault of our own, which must not pass for one of the runs
        say(f"no page: {error!r}. `kvswarm report {folder}` shows where that comes from")


def page_of_series(folder: Path) -> str:
    """The page of the sweep or search in a folder, empty where it holds none. Raises UsageError,
    and ModuleNotFoundError without the extra `report`."""
    if (folder / SWEEP_JSON).is_file():
        from dashboards.report.sweep_page import sweep_page

        return sweep_page(folder)
    from loadgen.saturate.folder import SATURATE_JSON

    if (folder / SATURATE_JSON).is_file():
        from dashboards.report.saturation_page import saturation_page

        return saturation_page(folder)
    return ""


def write_page(path: Path, page: str, mark: str = "") -> Path:
    """Write it, in place only of an earlier one, which `mark` tells. Raises UsageError."""
    require_ours(path, mark)
    try:
        _write(path, page.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another") from None
    return path


def _write(path: Path, page: bytes) -> None:
    """An earlier page stays whole until the new one is. Raises OSError."""
    file = Path(os.path.realpath(path))  # a link stays a link
    if _is_stream(path) or not _may_replace(file):
        path.write_bytes(page)
    else:
        write_whole(file, page)


def _is_stream(path: Path) -> bool:
    """A device or pipe: it is written through, and reading from it could wait for ever."""
    return path.is_char_device() or path.is_fifo()


def _may_replace(file: Path) -> bool:
    """Replacing needs leave for the folder, and must not get around a page that is read-only."""
    return os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


def require_ours(path: Path, mark: str = "") -> None:
    """Raises UsageError where something else than a report stands: an earlier one is renewed."""
    if not mark:
        from dashboards.report.page import MARK as mark

    if path.is_dir():
        raise UsageError(f"{path} is a directory: name a file, such as {path / FILE_NAME}")
    if str(path) == "-":
        raise UsageError(f"-o - names no file: give a name, such as {FILE_NAME}")
    if path.exists() and not _is_stream(path) and mark not in _beginning(path):
        raise UsageError(f"{path} is no report of kvswarm and is left as it is: name another -o")


def _beginning(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(2000)
    except OSError:
        return ""
