"""What a service of labels is and holds, by retrieval or by KV, asked before any load is sent."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from loadgen.client.host import Host, HostAnswer
from loadgen.context import Document
from loadgen.errors import HostError

PAGE = 1000
MAX_LISTED = 3


@dataclass(frozen=True, slots=True)
class RagFacts:
    """A RAG service that is ready; `strangers` counts documents that the corpus has not.

    Below the score `threshold` it refuses a question. `corpus_digest` is of all texts it holds,
    `questions` counts those that documents bring along.
    """

    url: str
    embedder: str | None
    documents: int | None
    chunks: int | None
    threshold: float | None
    strangers: int
    questions: int | None = None
    corpus_digest: str | None = None


async def probe_rag(
    url: str, documents: Collection[Document], source: Path | str, timeout_s: float = 10.0
) -> RagFacts:
    """Ask `url` whether it is ready and holds all `documents`, which were read from `source`.

    Without documents it is only asked whether it lists any: a KV service, which may be ready too,
    does not. Each question may take `timeout_s`. Raises HostError.
    """
    texts = {document.doc_id: _text_digest(document.text) for document in documents}
    async with Host.opened(url, {}, timeout_s) as host:
        ready = await host.ask("GET", "/ready")
        _require_ready(host, ready)
        facts = ready.json()
        strangers = 0
        if not texts:
            await _page(host, "", 1)
        elif facts.get("corpus_digest") != _corpus_digest(texts):
            held = await _held(host)
            _require_texts(host, texts, held, source)
            strangers = len(held) - len(texts)
        return RagFacts(
            url=host.url,
            embedder=facts.get("embedder"),
            documents=facts.get("documents"),
            chunks=facts.get("chunks"),
            threshold=facts.get("threshold"),
            strangers=strangers,
            questions=facts.get("questions"),
            corpus_digest=facts.get("corpus_digest"),
        )


def _require_ready(host: Host, ready: HostAnswer) -> None:
    if ready.status == 503:
        raise HostError(f"host {host.url} is not ready ({host.quote(ready)}): wait until it is")
    if ready.json().get("status") != "ready":
        raise _stranger(host, f"/ready answered HTTP {ready.status}")


def _stranger(host: Host, said: str) -> HostError:
    return HostError(
        f"{host.url} is no RAG service: {said}: give the address that `kvswarm rag serve` prints"
    )


def _require_texts(
    host: Host, texts: Mapping[str, str], held: Mapping[str, str | None], source: Path | str
) -> None:
    """Raise HostError where a text is missing or another one; some hosts tell no digest."""
    missing = [doc_id for doc_id in texts if doc_id not in held]
    other = [doc_id for doc_id, told in texts.items() if held.get(doc_id, told) not in (told, None)]
    if not missing and not other:
        return
    what, doc_ids = ("lacks", missing) if missing else ("has another text for", other)
    listed = ", ".join(doc_ids[:MAX_LISTED]) + (", …" if doc_ids[MAX_LISTED:] else "")
    raise HostError(
        f"host {host.url} {what} {len(doc_ids)} of the corpus's {len(texts)} documents"
        f" ({listed}): stop it, run `kvswarm rag index {source}` and start it again"
    )


def _text_digest(text: str) -> str:
    """As the service tells it: of the words, whatever white space is between them."""
    return _sha256_32(" ".join(text.split()))


def _corpus_digest(texts: Mapping[str, str]) -> str:
    """As the service tells it: of lines of id and text digest, sorted by id."""
    return _sha256_32("".join(f"{doc_id} {digest}\n" for doc_id, digest in sorted(texts.items())))


def _sha256_32(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


async def _held(host: Host) -> dict[str, str | None]:
    """The ids of all documents with the digests of their texts, a page at a time."""
    held: dict[str, str | None] = {}
    after = ""
    while True:
        listed, more = await _page(host, after, PAGE)
        # A page that adds nothing would be asked for again without end.
        if more and held.keys() >= listed.keys():
            raise _unlisted(host)
        held |= listed
        if not more:
            return held
        after = next(reversed(listed))


async def _page(host: Host, after: str, limit: int) -> tuple[dict[str, str | None], bool]:
    """The same of the first `limit` ids behind `after`, and whether more follow them."""
    answer = await host.ask("GET", f"/v1/documents?limit={limit}&after={quote(after, safe='')}")
    if answer.status != 200:
        raise HostError(
            f"host {host.url} does not list its documents: HTTP {answer.status}"
            f" {host.quote(answer)!r}"
        )
    page = answer.json()
    listed = _listed(page)
    if listed is None:
        raise _unlisted(host)
    return listed, bool(page.get("has_more"))


def _unlisted(host: Host) -> HostError:
    return _stranger(host, "/v1/documents answered with no list of documents")


def _listed(page: dict[str, Any]) -> dict[str, str | None] | None:
    """The ids on a page of the listing, and the digests of their texts; None where it is none."""
    entries = page.get("data")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        return None
    listed = {each.get("doc_id"): each.get("text_digest") for each in entries}
    return listed if all(isinstance(doc_id, str) for doc_id in listed) else None


@dataclass(frozen=True, slots=True)
class KvFacts:
    """A service that is ready. It labels by `features` of the KV of `model`, and knows `questions`
    earlier ones about `documents`; about `unknown` of a swarm's contexts it knows none."""

    url: str
    model: str
    features: str
    documents: int
    questions: int
    unknown: int


async def probe_kv(
    url: str, model: str = "", context_ids: Collection[str] = (), timeout_s: float = 10.0
) -> KvFacts:
    """Ask `url` whether it is ready with the KV of `model`, by the name under which the host serves
    it, "" for any, and which of a swarm's contexts it can name. Each question may take
    `timeout_s`. Raises HostError."""
    async with Host.opened(url, {}, timeout_s) as host:
        answer = await host.ask("GET", "/ready")
        told = answer.json()
        try:
            facts = KvFacts(
                url=host.url,
                model=str(told["model"]),
                features=str(told["features"]),
                documents=len(told["doc_ids"]),
                questions=int(told["questions"]),
                unknown=len(set(context_ids).difference(told["doc_ids"])),
            )
        except (KeyError, TypeError, ValueError):
            raise HostError(
                f"{host.url} labels nothing by KV: /ready answered HTTP {answer.status}: give the"
                " address that `kvswarm kv serve` prints"
            ) from None
        if model and facts.model != model:
            raise HostError(
                f"{host.url} computes the KV of {facts.model}, and the host serves {model}: start"
                " `kvswarm kv serve --model` with the folder of that model"
            )
        return facts
