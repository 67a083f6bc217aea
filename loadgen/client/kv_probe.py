"""What a service of KV labels is, asked before any load is sent."""

from collections.abc import Collection
from dataclasses import dataclass

from loadgen.client.host import Host
from loadgen.errors import HostError


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
    url: str, model: str, context_ids: Collection[str], timeout_s: float = 10.0
) -> KvFacts:
    """Ask `url` whether it is ready with the KV of `model`, by the name under which the host serves
    it, and which of a swarm's contexts it can name. Each question may take `timeout_s`. Raises
    HostError."""
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
        if facts.model != model:
            raise HostError(
                f"{host.url} computes the KV of {facts.model}, and the host serves {model}: start"
                " `kvswarm kv serve --model` with the folder of that model"
            )
        return facts
