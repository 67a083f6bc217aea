"""What a host is, asked before any load is sent."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.client.failures import one_line
from loadgen.client.host import Host
from loadgen.client.settings import API_KEY_VARIABLES
from loadgen.errors import HostError

MAX_LISTED_MODELS, MOST_CHARS = 10, 60


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host that serves `model`; `url` has neither trailing slash nor `/v1`.

    `max_model_len` is in tokens.
    """

    url: str
    model: str
    served_models: tuple[str, ...]
    max_model_len: int | None
    is_vllm: bool
    version: str | None
    has_metrics: bool
    has_tokenize: bool


async def probe(
    url: str, model: str | None, headers: Mapping[str, str], timeout_s: float = 10.0
) -> HostFacts:
    """Ask `url` what it is and whether it serves `model`, or its only model for None.

    Each question may take `timeout_s`. Raises HostError.
    """
    async with Host.opened(url, headers, timeout_s) as host:
        cards = await _model_cards(host)
        served = tuple(cards)
        chosen = _choose(host.url, served, model)
        version, has_metrics, has_tokenize = await asyncio.gather(
            _version(host),
            _has_metrics(host),
            _has_tokenize(host, chosen),
        )
        card = cards.get(chosen, {})
        is_vllm = version is not None and card.get("owned_by") == "vllm"
        return HostFacts(
            url=host.url,
            model=chosen,
            served_models=served,
            max_model_len=_max_model_len(card, cards),
            is_vllm=is_vllm,
            version=version,
            has_metrics=has_metrics,
            has_tokenize=has_tokenize,
        )


async def count_tokens(
    url: str,
    model: str,
    texts: Sequence[str],
    headers: Mapping[str, str],
    concurrency: int = 4,
) -> list[int]:
    """The length of each text in the model's tokens, without special tokens, by POST /tokenize.

    Raises HostError when the host has no such route or refuses.
    """
    free = asyncio.Semaphore(concurrency)

    async def count(text: str) -> int:
        async with free:
            return await _tokenize(host, model, text)

    async with Host.opened(url, headers, timeout_s=60.0) as host:
        tasks = [asyncio.create_task(count(text)) for text in texts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


async def _model_cards(host: Host) -> dict[str, dict[str, Any]]:
    """The entries of /v1/models by id."""
    answer = await host.ask("GET", "/v1/models")
    if answer.status in (401, 403):
        wish = "refuses the API key it was given" if host.has_key else "wants an API key"
        raise HostError(
            f"host {host.url} {wish} (HTTP {answer.status}): "
            f"set {' or '.join(API_KEY_VARIABLES)} in the environment"
        )
    if 300 <= answer.status < 400:
        raise HostError(
            f"host {host.url} redirects to {host.safe(answer.location)}: use that address"
        )
    entries = answer.json().get("data")
    if not isinstance(entries, list):
        raise HostError(
            f"host {host.url} has no OpenAI API: /v1/models answered HTTP {answer.status} "
            f"{host.quote(answer)!r}: is it the address of an inference server?"
        )
    cards = (entry for entry in entries if isinstance(entry, dict))
    return {card["id"]: card for card in cards if isinstance(card.get("id"), str)}


def listed_models(served: Sequence[str]) -> str:
    """The first of these names, which are the host's, in a line; empty for none."""
    listed = ", ".join(one_line(name, MOST_CHARS) for name in served[:MAX_LISTED_MODELS])
    more = len(served) - MAX_LISTED_MODELS
    return f"{listed}, and {more} more" if more > 0 else listed


def _choose(url: str, served: tuple[str, ...], model: str | None) -> str:
    listed = listed_models(served)
    if model is None and len(served) == 1:
        return served[0]
    if model is None:
        raise HostError(f"host {url} serves {listed or 'no model'}: choose one with --model")
    # A host may load models on demand and list none; then its own answer will tell.
    if served and model not in served:
        raise HostError(f"host {url} does not serve model {model!r}: choose from {listed}")
    return model


def _max_model_len(card: Mapping[str, Any], cards: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The window in tokens, of a LoRA adapter that of its base model."""
    for entry in (card, cards.get(str(card.get("parent")), {})):
        length = entry.get("max_model_len")
        if type(length) is int:
            return length
    return None


async def _version(host: Host) -> str | None:
    try:
        version = (await host.ask("GET", "/version")).json().get("version")
    except HostError:
        return None
    return version if isinstance(version, str) else None


async def _has_metrics(host: Host) -> bool:
    try:
        answer = await host.ask("GET", "/metrics")
    except HostError:
        return False
    # A web application may answer 200 with its start page to any path.
    kinds = ("text/plain", "application/openmetrics-text")
    return answer.status == 200 and answer.content_type.startswith(kinds)


async def _has_tokenize(host: Host, model: str) -> bool:
    try:
        return await _tokenize(host, model, "a") > 0
    except HostError:
        return False


async def _tokenize(host: Host, model: str, text: str) -> int:
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    answer = await host.ask("POST", "/tokenize", body)
    count = answer.json().get("count")
    if type(count) is int:
        return count
    raise HostError(
        f"host {host.url} cannot count tokens: /tokenize answered HTTP {answer.status} "
        f"{host.quote(answer)!r}: give --tokenizer"
    )
