"""Emptying the caches of running services, and the proof that they are empty."""

import asyncio
from collections.abc import Sequence

import aiohttp

from loadgen.targets import engine_api
from loadgen.targets.engine_api import ApiError
from loadgen.targets.plan import ServicePlan

RESET_TRIES, RESET_PAUSE_S = 40, 0.25
PROOF_TRIES = 3
PROBE_TOKENS = 513  # longer than two blocks or chunks of up to 256 tokens


class CacheReset:
    """Resets through the services' own routes, the engine first."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        plans: Sequence[ServicePlan],
        model: str,
        max_model_len: int | None,
    ) -> None:
        self._session = session
        self._plans = sorted(plans, key=lambda plan: plan.role != "engine")
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
        """The cached tokens of a fixed prompt. Raises ApiError."""
        url = self._plans[0].url
        return await engine_api.complete(self._session, url, self._model, self._probe_tokens)

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
        if plan.reset_url is None or not await engine_api.reset(self._session, plan.reset_url):
            return False
        if plan.empty_metric is None or plan.metrics_url is None:
            return True
        return await engine_api.metric(self._session, plan.metrics_url, plan.empty_metric) == 0
