"""The way to Chroma: on a server, or in a folder of which there is one user at a time."""

import fcntl
import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.error import URLError
from urllib.request import urlopen

from rag_store.errors import RagUsageError, StoreError
from rag_store.extras import install_command
from rag_store.model_server import line_of, parsed_url

_ANSWER_S = 5.0
_WORK_S = 60.0
"""For any one call: a change has few rows."""


def open_client(chroma_url: str, path: Path) -> Any:
    """A client of the server or else the folder. Raises RagError and whatever Chroma does."""
    try:
        import chromadb
        from chromadb.config import Settings as ChromaSettings
    except ImportError as error:
        raise StoreError(f"Chroma is not installed: {install_command('rag')}") from error
    quiet = ChromaSettings(anonymized_telemetry=False)
    if not chroma_url:
        return chromadb.PersistentClient(str(path), quiet)
    url = _with_port(chroma_url)
    try:
        require_answer(chroma_url)
        # A host alone would lose the brackets of IPv6, and its port where it begins with http.
        client: Any = chromadb.HttpClient(url, settings=quiet)
        with suppress(AttributeError):  # else it waits for ever
            client._server._session.timeout = _WORK_S
        return client
    # Whatever answers there; the constructor asks who we are and for our database.
    except Exception as error:
        raise StoreError(
            f"cannot open Chroma: no Chroma server answers at {chroma_url}"
            f" ({reason_of(error)}): start one there, or name another --chroma-url"
        ) from error


def require_answer(chroma_url: str) -> None:
    """Ask a server for its heartbeat. Raises what urllib does where none comes in time."""
    # Chroma's client waits for ever for a server that takes connections and says nothing.
    urlopen(f"{_with_port(chroma_url)}/api/v2/heartbeat", timeout=_ANSWER_S).close()


def reason_of(error: Exception) -> str:
    """What it says, in one line; Chroma keeps a server's whole page, or nothing of it."""
    said = error.reason if type(error) is URLError else error
    return line_of(str(said).strip().split("\n")[0]) or type(error).__name__


def _with_port(chroma_url: str) -> str:
    url = parsed_url(chroma_url, "--chroma-url", instead="give http://host:port")
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}:{url.port or (443 if url.scheme == 'https' else 8000)}"


def open_folder(folder: Path, create: bool, held: ExitStack) -> tuple[Path, bool]:
    """Where Chroma may open a library's folder until `held` is closed, and whether that is a copy.

    The folder is locked. One that cannot be written is shared by all who read it, each of whom
    opens a copy: Chroma writes also where it is only asked. Without `create` it must be there.
    Raises RagUsageError and StoreError.
    """
    if not create and not os.path.isfile(folder / "chroma.sqlite3"):  # noqa: PTH113, no OSError
        raise RagUsageError(
            f"there is no library in {folder}: name another --path, or make one with kvswarm"
            " rag index"
        )
    if create or os.access(folder, os.W_OK):
        return _locked(folder, held), False
    return _copied(folder, held), True


def _locked(folder: Path, held: ExitStack) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = held.enter_context((folder / "lock").open("w"))
    except OSError as error:
        raise RagUsageError(
            f"cannot write to {folder} ({error.strerror}): name another --path"
        ) from error
    # Two processes on one folder do not see each other's rows, so only one gets in.
    _lock(file, fcntl.LOCK_EX, folder)
    return folder


def _copied(folder: Path, held: ExitStack) -> Path:
    try:
        if (folder / "lock").exists():
            _lock(held.enter_context((folder / "lock").open()), fcntl.LOCK_SH, folder)
        copy = Path(held.enter_context(TemporaryDirectory(prefix="kvswarm-library-")))
        for path in folder.rglob("*"):
            own = path.relative_to(folder)
            if path.is_file() and own.parts[0] != "states":
                (copy / own).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy / own)
    except OSError as error:
        raise StoreError(f"cannot copy {folder}, which is read-only: {error.strerror}") from error
    return copy


def _lock(file: IO[str], kind: int, folder: Path) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreError(
            f"{folder} is in use by another process: stop it, name another --path,"
            " or let both use a Chroma server with --chroma-url"
        ) from error
