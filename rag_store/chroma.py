"""The way to Chroma: in this process, or on a server."""

from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from rag_store.errors import StoreError
from rag_store.extras import install_command
from rag_store.model_server import line_of, parsed_url

_ANSWER_S = 5.0


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
    host, port, secure = _address(chroma_url)
    try:
        require_answer(chroma_url)
        return chromadb.HttpClient(host, port, ssl=secure, settings=quiet)
    # Whatever answers there; the constructor asks who we are and for our database.
    except Exception as error:
        raise StoreError(
            f"cannot open Chroma: no Chroma server answers at {chroma_url}"
            f" ({reason_of(error)}): start one there, or name another --chroma-url"
        ) from error


def require_answer(chroma_url: str) -> None:
    """Ask a server for its heartbeat. Raises what urllib does where none comes in time.

    Chroma's client waits for ever for a server that takes connections and says nothing.
    """
    host, port, secure = _address(chroma_url)
    scheme, name = "https" if secure else "http", f"[{host}]" if ":" in host else host
    urlopen(f"{scheme}://{name}:{port}/api/v2/heartbeat", timeout=_ANSWER_S).close()


def reason_of(error: Exception) -> str:
    """What it says, in one line; Chroma keeps a server's whole page, or nothing of it."""
    said = error.reason if type(error) is URLError else error
    return line_of(str(said).strip().split("\n")[0]) or type(error).__name__


def _address(chroma_url: str) -> tuple[str, int, bool]:
    url = parsed_url(chroma_url, "--chroma-url", instead="give http://host:port")
    secure = url.scheme == "https"
    return url.hostname or "", url.port or (443 if secure else 8000), secure
