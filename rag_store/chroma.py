"""The way to Chroma: in this process, or on a server."""

from typing import Any
from urllib.parse import urlsplit

from rag_store.errors import RagUsageError, StoreError
from rag_store.model_server import line_of
from rag_store.settings import Settings


def open_client(settings: Settings) -> Any:
    """Chroma's client. Raises RagUsageError, StoreError, and whatever Chroma does."""
    try:
        import chromadb
        from chromadb.config import Settings as ChromaSettings
    except ImportError as error:
        raise StoreError("Chroma is not installed: pip install 'kvswarm[rag]'") from error
    quiet = ChromaSettings(anonymized_telemetry=False)
    if not settings.chroma_url:
        return chromadb.PersistentClient(str(settings.path), quiet)
    host, port, secure = _address(settings.chroma_url)
    try:
        return chromadb.HttpClient(host, port, ssl=secure, settings=quiet)
    # Whatever answers there; the constructor asks who we are and for our database.
    except Exception as error:
        raise StoreError(
            f"cannot open Chroma: no Chroma server answers at {settings.chroma_url}"
            f" ({reason_of(error)}): start one there, or name another --chroma-url"
        ) from error


def reason_of(error: Exception) -> str:
    """What it says, in one line; Chroma keeps a server's whole page, or nothing of it."""
    return line_of(str(error).strip().split("\n")[0]) or type(error).__name__


def _address(chroma_url: str) -> tuple[str, int, bool]:
    if "@" in chroma_url:  # it would stand in errors, and is not sent
        raise RagUsageError("--chroma-url holds a password: give http://host:port")
    try:
        url = urlsplit(chroma_url)
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in ("http", "https"):
        raise RagUsageError(f"--chroma-url is {chroma_url!r}: give http://host:port")
    secure = url.scheme == "https"
    return host, port or (443 if secure else 8000), secure
