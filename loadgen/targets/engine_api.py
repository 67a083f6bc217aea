"""What we ask a running service over HTTP, apart from load."""

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.stats.prometheus import MetricReader, Series

# Small ids are single bytes in every byte-level vocabulary, so any model knows these.
PROBE_IDS = range(100, 200)
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=120)
STATUS_TIMEOUT = aiohttp.ClientTimeout(total=10)


class ApiError(Exception):
    """A service did not answer as it should; says what it answered."""


@dataclass(frozen=True, slots=True)
class EngineCache:
    """The engine's own cache as the running engine reports it."""

    block_size: int
    blocks: int


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a GET of `url` succeeds."""
    try:
        async with session.get(url, timeout=STATUS_TIMEOUT) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def complete(
    session: aiohttp.ClientSession, url: str, model: str, prompt_tokens: int
) -> int | None:
    """Have one token generated after a fixed prompt of `prompt_tokens`.

    Returns the cached prompt tokens, None where the engine does not tell. Raises ApiError.
    """
    prompt = [PROBE_IDS[(7 * i * i + i) % len(PROBE_IDS)] for i in range(prompt_tokens)]
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = await _json(session, "POST", f"{url}/v1/completions", body)
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return cached if isinstance(cached, int) else None


async def reset(session: aiohttp.ClientSession, url: str) -> bool:
    """POST a reset route; False when the service says that it cannot now. Raises ApiError."""
    return (await _json(session, "POST", url)).get("success") is not False


async def max_model_len(session: aiohttp.ClientSession, url: str) -> int | None:
    """The longest request the engine takes, None where it does not tell. Raises ApiError."""
    answer = await _json(session, "GET", f"{url}/v1/models")
    models = answer.get("data") or [{}]
    length = models[0].get("max_model_len")
    return length if isinstance(length, int) else None


async def engine_cache(
    session: aiohttp.ClientSession, metrics_url: str, info: str
) -> EngineCache | None:
    """Block size and blocks by the labels of the metric `info`, None where there are none.

    Raises ApiError.
    """
    page = await _text(session, "GET", metrics_url)
    for sample in MetricReader([Series.parse(info).name]).read(page.encode()):
        size, blocks = (sample.labels.get(name, "") for name in ("block_size", "num_gpu_blocks"))
        if size.isdigit() and blocks.isdigit():
            return EngineCache(int(size), int(blocks))
    return None


async def metric(session: aiohttp.ClientSession, metrics_url: str, name: str) -> float | None:
    """The sum of a metric's series, None where it is not there. Raises ApiError."""
    page = await _text(session, "GET", metrics_url)
    values = [sample.value for sample in MetricReader([name]).read(page.encode())]
    return sum(values) if values else None


async def _json(
    session: aiohttp.ClientSession, method: str, url: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    text = await _text(session, method, url, body)
    try:
        answer = json.loads(text or "{}")
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ApiError(f"{method} {url} answered no JSON object: {text[:200]}")
    return answer


async def _text(
    session: aiohttp.ClientSession, method: str, url: str, body: dict[str, Any] | None = None
) -> str:
    try:
        async with session.request(method, url, json=body, timeout=REQUEST_TIMEOUT) as response:
            text = await response.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ApiError(f"{method} {url} failed: {error or type(error).__name__}") from error
    if response.status >= 300:
        raise ApiError(f"{method} {url} answered {response.status}: {text[:200]}")
    return text
