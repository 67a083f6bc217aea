"""What we ask a running service over HTTP, apart from load, and how its caches are emptied."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.client.failures import StreamFailure
from loadgen.client.host import ControlClient, HostAnswer
from loadgen.client.settings import of_length
from loadgen.stats.prometheus import MetricReader, MetricSeries
from loadgen.targets.own_routes import KEY_HEADER, KEY_VARIABLE
from loadgen.targets.plan import ServicePlan

# Small ids are single bytes in every byte-level vocabulary, so any model knows these.
PROBE_IDS = range(100, 200)
REQUEST_TIMEOUT_S, STATUS_TIMEOUT_S = 300.0, 10.0
RESET_TRIES, RESET_PAUSE_S = 40, 0.25
KEPT_FILES = (".bin", ".sum", ".data")
"""How the names of files end in which vLLM and LMCache keep KV."""
PROOF_TRIES = 3
NO_HEADERS: Mapping[str, str] = {}
PROBE_TOKENS = 513  # longer than two blocks or chunks of up to 256 tokens


class ApiError(Exception):
    """A service did not answer as it should; says what it answered."""


@dataclass(frozen=True, slots=True)
class EngineCache:
    """The engine's own cache as the running engine reports it."""

    block_size: int
    blocks: int


async def is_ready(url: str) -> bool:
    """Whether a GET of `url` succeeds."""
    try:
        return (await _answer("GET", url, None, STATUS_TIMEOUT_S)).status == 200
    except ApiError:
        return False


async def complete(
    url: str, model: str, prompt: str | Sequence[int], extra: Mapping[str, Any] | None = None
) -> int | None:
    """Have one token generated after a text or token ids; `extra` are fields of the request.

    Returns the cached prompt tokens, None where the engine does not tell. Raises ApiError.
    """
    asked = prompt if isinstance(prompt, str) else list(prompt)
    body = {"model": model, "prompt": asked, "max_tokens": 1, "temperature": 0}
    answer = await _json("POST", f"{url}/v1/completions", body | of_length(extra or {}, 1))
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return cached if isinstance(cached, int) else None


def fixed_prompt(tokens: int, number: int = 0) -> list[int]:
    """The same ids for the same length; another `number` is another prompt from its first id."""
    return [PROBE_IDS[(7 * i * i + i + number) % len(PROBE_IDS)] for i in range(tokens)]


async def reset(url: str, key: str | None = None) -> bool:
    """POST a reset route; False when the service says that it cannot now. Raises ApiError.

    `key` is what the service was given for routes of ours (`own_routes`).
    """
    headers = {} if key is None else {KEY_HEADER: key}
    return (await _json("POST", url, headers=headers)).get("success") is not False


async def max_model_len(url: str) -> int | None:
    """The longest request the engine takes, None where it does not tell. Raises ApiError."""
    answer = await _json("GET", f"{url}/v1/models")
    models = answer.get("data") or [{}]
    length = models[0].get("max_model_len")
    return length if isinstance(length, int) else None


async def engine_cache(metrics_url: str, info: str) -> EngineCache | None:
    """Block size and blocks by the labels of the metric `info`, None where there are none.

    Raises ApiError.
    """
    page = await _page("GET", metrics_url)
    for sample in MetricReader([MetricSeries.parse(info).name]).read(page):
        size, blocks = (sample.labels.get(name, "") for name in ("block_size", "num_gpu_blocks"))
        if size.isdigit() and blocks.isdigit():
            return EngineCache(int(size), int(blocks))
    return None


async def metric(metrics_url: str, name: str) -> float | None:
    """The sum of a metric's series, None where it is not there. Raises ApiError."""
    samples = MetricReader([name]).read(await _page("GET", metrics_url))
    return sum(sample.value for sample in samples) if samples else None


async def _json(
    method: str, url: str, body: object = None, headers: Mapping[str, str] = NO_HEADERS
) -> dict[str, Any]:
    page = await _page(method, url, body, headers)
    try:
        answer = json.loads(page or b"{}")
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ApiError(f"{method} {url} answered no JSON object: {_shown(page)}")
    return answer


async def _page(
    method: str, url: str, body: object = None, headers: Mapping[str, str] = NO_HEADERS
) -> bytes:
    answer = await _answer(method, url, body, REQUEST_TIMEOUT_S, headers)
    if answer.status >= 300:
        raise ApiError(f"{method} {url} answered {answer.status}: {_shown(answer.body)}")
    return answer.body


async def _answer(
    method: str,
    url: str,
    body: object,
    timeout_s: float,
    headers: Mapping[str, str] = NO_HEADERS,
) -> HostAnswer:
    try:
        async with ControlClient(url, headers, timeout_s) as service:
            return await service.ask(method, "", body)
    except (StreamFailure, TimeoutError) as error:
        raise ApiError(f"{method} {url} failed: {error or type(error).__name__}") from error


def _remove_files(folder: Path) -> None:
    """Remove what a tier on disk keeps; its folders stay, as it may be making files in them."""
    for path in folder.rglob("*"):
        if path.suffix in KEPT_FILES:
            path.unlink(missing_ok=True)


def _shown(page: bytes) -> str:
    return page[:200].decode("utf-8", "replace")


class CacheReset:
    """Resets through the services' own routes, the engines first."""

    def __init__(self, plans: Sequence[ServicePlan], model: str, max_model_len: int | None) -> None:
        caches = [plan for plan in plans if plan.role != "router"]
        self._plans = sorted(caches, key=lambda plan: plan.role != "engine")
        self._model = model
        self._probe_tokens = min(PROBE_TOKENS, (max_model_len or PROBE_TOKENS + 1) - 1)

    async def empty_and_prove(self) -> bool:
        """Whether all caches are now empty, shown by a prompt sent before and after a reset.

        The proof is repeated: an engine may still have been storing the first prompt in LMCache
        while that was emptied. The last reset takes away the prompt itself.
        """
        try:
            for _ in range(PROOF_TRIES):
                await self.probe()
                if not await self._empty():
                    return False
                if await self.probe() == 0:
                    return await self._empty()
        except ApiError:
            return False
        return False

    async def probe(self) -> int | None:
        """The cached tokens of a fixed prompt, of several engines the most; None where one does
        not tell. Raises ApiError.

        Each engine has a prompt of its own: a cache that they share has that of another.
        """
        engines = [plan.url for plan in self._plans if plan.role == "engine"]
        told = [
            await complete(url, self._model, fixed_prompt(self._probe_tokens, number))
            for number, url in enumerate(engines)
        ]
        counts = [count for count in told if count is not None]
        return max(counts) if len(counts) == len(told) else None

    async def _empty(self) -> bool:
        """Reset every service; False where one has no route or keeps refusing.

        A reset is refused for as long as requests run or their KV is still being stored.
        """
        for _ in range(RESET_TRIES):
            if all([await self._reset(plan) for plan in self._plans]):
                return True
            await asyncio.sleep(RESET_PAUSE_S)
        return False

    async def _reset(self, plan: ServicePlan) -> bool:
        if plan.reset_url is None or not await reset(plan.reset_url, plan.env.get(KEY_VARIABLE)):
            return False
        if plan.l2_dir is not None:
            await asyncio.to_thread(_remove_files, plan.l2_dir)
        if plan.empty_metric is None or plan.metrics_url is None:
            return True
        return await metric(plan.metrics_url, plan.empty_metric) == 0
