"""One completion, tried before any load: a wrong endpoint, key or field is told at once.

It is a word long, so that no block of a cache can be filled by it, and goes out before caches are
emptied. Nothing of it is measured.
"""

import asyncio
import re
from dataclasses import replace

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.probe import HostFacts, listed_models
from loadgen.client.protocol import ROUTES
from loadgen.client.settings import API_KEY_VARIABLES, ClientSettings, Endpoint
from loadgen.errors import HostError

PROMPT = "Hi"
ANSWER_S = 1.0
"""A host that is slower is loaded all the same: it is not known to be wrong."""
REST_S = 0.5
POLL_S = 0.01
NO_ROUTE = frozenset({404, 405})
NOT_IMPLEMENTED = 501
WRONG_ROUTE = NO_ROUTE | {400, NOT_IMPLEMENTED}
NO_KEY = frozenset({401, 403})
FOR_NOW = frozenset({408, 425, 429})
"""What another request may be spared."""
_OF_ENDPOINTS = re.compile(r"completions|endpoint|\bchat\b", re.IGNORECASE)
"""In the words of OpenAI and vLLM for a model that is not for this endpoint."""


async def try_completion(
    settings: ClientSettings, facts: HostFacts, max_tokens: int, as_list: bool
) -> str:
    """Ask for one completion, as users will; what is odd about the answer, "" for nothing.

    Raises HostError for an answer that all others would have, too.
    """
    exchange = await _answered(settings, max_tokens, as_list)
    status = exchange.status or 0
    if (400 <= status < 500 and status not in FOR_NOW) or status == NOT_IMPLEMENTED:
        said = await _other_endpoint(settings, status, exchange.error)
        raise HostError(said or _refusal(settings, facts, status, exchange.error))
    failed = exchange.outcome != "ok" and exchange.error
    return f"a completion tried before the load failed: {failed}" if failed else ""


async def _answered(
    settings: ClientSettings, max_tokens: int, as_list: bool = False
) -> Exchange | ListExchange:
    """What is known of it after `ANSWER_S`; a reply that began may take a little longer."""
    exchange = ListExchange.of(2, settings.ignore_eos) if as_list else Exchange()
    prompt = [PROMPT] * 2 if as_list else PROMPT
    async with StreamingClient(settings) as client:
        task = asyncio.create_task(client.stream(prompt, max_tokens, exchange))
        try:
            async with asyncio.timeout(ANSWER_S):
                while not task.done() and exchange.status != 200:
                    await asyncio.wait([task], timeout=POLL_S)
            await asyncio.wait([task], timeout=REST_S)
        except TimeoutError:
            pass
        if task.cancel():
            await asyncio.wait([task])
            exchange.error = ""
    return exchange


async def _other_endpoint(settings: ClientSettings, status: int, error: str) -> str:
    """What is said of a host whose other endpoint may be meant, "" where it is not."""
    has_no_route = status in NO_ROUTE and not _is_about_model(error)
    words = re.sub(rf"(?<!\w){re.escape(settings.model)}(?!\w)", "", error)
    if not has_no_route and not (status in WRONG_ROUTE and _OF_ENDPOINTS.search(words)):
        return ""
    other: Endpoint = "chat" if settings.endpoint == "completions" else "completions"
    said = f"host {settings.url} answers HTTP {status} for {ROUTES[settings.endpoint]}"
    tried = await _answered(replace(settings, endpoint=other), 1)
    if tried.status == 200 or (has_no_route and tried.status not in NO_ROUTE):
        return f"{said}: try --endpoint {other} ({error})"
    if not has_no_route:
        return ""
    return f"{said} and for {ROUTES[other]}: is it the address of an inference server? ({error})"


def _refusal(settings: ClientSettings, facts: HostFacts, status: int, error: str) -> str:
    if status in NO_KEY:
        has_key = any(name.lower() == "authorization" for name in settings.headers)
        wish = "refuses the API key it was given" if has_key else "wants an API key"
        where = " or ".join(API_KEY_VARIABLES)
        return f"host {settings.url} {wish} ({error}): set {where} in the environment"
    said = f"host {settings.url} refuses a completion of model {settings.model!r} ({error})"
    if not _is_about_model(error):
        return f"{said}: see --endpoint, --extra-body and --header"
    listed = listed_models(facts.served_models)
    return f"{said}: choose --model from {listed or 'what it serves, of which it lists nothing'}"


def _is_about_model(error: str) -> bool:
    return "model" in error.lower()
