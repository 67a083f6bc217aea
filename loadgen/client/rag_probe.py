"""What a RAG service is and holds, asked before any load is sent."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from loadgen.client.host import Host
from loadgen.client.question import Answer
from loadgen.errors import HostError

PAGE = 1000
MAX_LISTED = 3


@dataclass(frozen=True, slots=True)
class RagFacts:
    """A RAG service that is ready; `strangers` counts documents that the corpus has not.

    Below the score `threshold` it refuses a question.
    """

    url: str
    embedder: str | None
    documents: int | None
    chunks: int | None
    threshold: float | None
    strangers: int


async def probe_rag(
    url: str, doc_ids: Collection[str], source: Path | str, timeout_s: float = 10.0
) -> RagFacts:
    """Ask `url` whether it is ready and holds all `doc_ids`, which were read from `source`.

    Each question may take `timeout_s`. Raises HostError.
    """
    async with Host.opened(url, {}, timeout_s) as host:
        ready = await host.ask("GET", "/ready")
        _require_ready(host, ready)
        held = await _held(host)
        missing = [doc_id for doc_id in doc_ids if doc_id not in held]
        if missing:
            listed = ", ".join(missing[:MAX_LISTED]) + (", …" if missing[MAX_LISTED:] else "")
            raise HostError(
                f"host {host.url} lacks {len(missing)} of the corpus's {len(doc_ids)} documents"
                f" ({listed}): stop it, run `kvswarm rag index {source}` and start it again"
            )
        facts = ready.json()
        return RagFacts(
            url=host.url,
            embedder=facts.get("embedder"),
            documents=facts.get("documents"),
            chunks=facts.get("chunks"),
            threshold=facts.get("threshold"),
            strangers=len(held) - len(doc_ids),
        )


def _require_ready(host: Host, ready: Answer) -> None:
    if ready.status == 503:
        raise HostError(f"host {host.url} is not ready ({host.quote(ready)}): wait until it is")
    if ready.json().get("status") != "ready":
        raise _stranger(host, f"/ready answered HTTP {ready.status}")


def _stranger(host: Host, said: str) -> HostError:
    return HostError(
        f"{host.url} is no RAG service: {said}: give the address that `kvswarm rag serve` prints"
    )


async def _held(host: Host) -> set[str]:
    """The ids of all documents, a page at a time."""
    held: set[str] = set()
    after = ""
    while True:
        answer = await host.ask("GET", f"/v1/documents?limit={PAGE}&after={quote(after, safe='')}")
        if answer.status != 200:
            raise HostError(
                f"host {host.url} does not list its documents: HTTP {answer.status}"
                f" {host.quote(answer)!r}"
            )
        page = answer.json()
        doc_ids = _doc_ids(page)
        more = bool(page.get("has_more"))
        # A page that adds nothing would be asked for again without end.
        if doc_ids is None or (more and held.issuperset(doc_ids)):
            raise _stranger(host, "/v1/documents answered with no list of documents")
        held.update(doc_ids)
        if not more:
            return held
        after = doc_ids[-1]


def _doc_ids(page: dict[str, Any]) -> list[str] | None:
    """The ids on a page of the listing; None where it is none."""
    entries = page.get("data")
    if not isinstance(entries, list):
        return None
    told = [entry.get("doc_id") if isinstance(entry, dict) else None for entry in entries]
    doc_ids = [doc_id for doc_id in told if isinstance(doc_id, str)]
    return doc_ids if len(doc_ids) == len(entries) else None
