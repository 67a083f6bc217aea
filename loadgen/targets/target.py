"""A target of ours between its start and its stop."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import TargetError
from loadgen.runs.machine import hide_variables, without_secrets
from loadgen.targets import engine_api
from loadgen.targets.catalog import CACHE_INFO, TargetSpec
from loadgen.targets.engine_api import ApiError, CacheReset, EngineCache
from loadgen.targets.fleet import EngineDeath, fleet_of, require_router
from loadgen.targets.hardware import (
    VLLM_SOCKET,
    Platform,
    detect_platform,
    free_ports,
    installed_versions,
    require_fp8_kernels,
    require_free,
    require_packages,
    require_short_tmpdir,
)
from loadgen.targets.own_routes import KEY_VARIABLE
from loadgen.targets.plan import (
    RESERVED_BLOCKS,
    KvCapacity,
    ServicePlan,
    plan_capacity,
    plan_services,
    port_names,
    require_profile,
    uses,
    uses_l1,
)
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.settings import USUAL_ROUTER, TargetSettings

__all__ = ["RunningTarget", "TargetSettings", "check_target", "start_target"]

SOCKET_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Names another folder than TMPDIR for vLLM's sockets."""
GREETING = "Hi"  # too short to fill a block: the first completion leaves the cache empty


@asynccontextmanager
async def start_target(
    spec: TargetSpec,
    settings: TargetSettings,
    log_dir: Path,
    on_death: Callable[[TargetError], None] = lambda error: None,
) -> AsyncIterator["RunningTarget"]:
    """Run a target; inside, it has answered its first completion and its caches are empty.

    Raises UsageError for what can be seen before anything starts, TargetError when a service dies
    or is not ready in time. Nothing is left running afterwards, whatever happens.
    `on_death` hears of an engine that dies later while others go on.
    """
    spec = fleet_of(spec, settings)
    capacity, plans = _plan(spec, settings)
    times_s = settings.start_timeout_s, settings.stop_grace_s
    async with ServiceGroup(plans, log_dir, *times_s, on_death) as group:
        target = RunningTarget(spec, settings, group)
        await target.start()
        target.require(capacity)
        yield target


def check_target(spec: TargetSpec, settings: TargetSettings) -> None:
    """Raise the UsageError that `start_target` would raise now; nothing is started."""
    _plan(fleet_of(spec, settings), settings)


def _plan(
    spec: TargetSpec, settings: TargetSettings
) -> tuple[KvCapacity | None, list[ServicePlan]]:
    platform = detect_platform()
    has_vllm = any("vllm" in service.requires for service in spec.services)
    if has_vllm and SOCKET_VARIABLE not in os.environ:
        require_short_tmpdir(VLLM_SOCKET)
    require_packages(spec, platform)
    require_fp8_kernels(spec, platform)
    require_router(spec, settings)
    if uses(spec, "kv_profile") and settings.kv_profile:
        require_profile(settings)
    capacity = plan_capacity(spec, settings, platform)
    ports = _ports(spec, settings, platform)
    return capacity, plan_services(spec, settings, platform, ports)


def _ports(spec: TargetSpec, settings: TargetSettings, platform: Platform) -> dict[str, int]:
    *others, front = port_names(spec, settings, platform)
    # 0 only tries the address: an engine with a name that leads nowhere would be waited for.
    require_free(settings.host, settings.port or 0)
    own = settings.port
    *free, last = free_ports(len(others) + 1)
    return {**dict(zip(others, free, strict=True)), front: own or last}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the running engine says about itself; None where it does not."""

    cache: EngineCache | None
    max_model_len: int | None


class RunningTarget:
    """Services that answer; `url` is that of the engine, or of the router before several, `model`
    the name requests must carry."""

    def __init__(self, spec: TargetSpec, settings: TargetSettings, group: ServiceGroup) -> None:
        self._spec = spec
        self._settings = settings
        self._group = group
        self._engines = [plan for plan in group.plans if plan.role == "engine"]
        self._facts = EngineFacts(None, None)
        self.url = group.url
        self.model = self._engines[0].model

    async def start(self) -> None:
        """Start the services, wait for a first completion, read what the engine says of itself."""
        await self._group.start()
        try:
            for url in dict.fromkeys((*(plan.url for plan in self._engines), self.url)):
                await engine_api.complete(url, self.model, GREETING, self._spec.body)
            cache = await self._cache()
            length = await engine_api.max_model_len(self.url)
        except ApiError as error:
            self.check_whole()
            raise self._group.error(f"is up but does not answer ({error})") from error
        self._facts = EngineFacts(cache, length)

    async def _cache(self) -> EngineCache | None:
        first = self._engines[0]
        metrics, info = first.metrics_url, first.series.get(CACHE_INFO)
        if metrics is None or info is None:
            return None
        return await engine_api.engine_cache(metrics, info)

    def require(self, capacity: KvCapacity | None) -> None:
        """TargetError when the engine reports another cache than the one asked for."""
        cache = self._facts.cache
        if capacity is None or cache is None:
            return
        if (cache.block_size, cache.blocks) != (capacity.block_size, capacity.blocks):
            raise TargetError(
                f"target {self._spec.name} was to have {capacity.blocks} KV blocks of"
                f" {capacity.block_size} tokens but has {cache.blocks} of {cache.block_size}:"
                " correct block_size in the targets file"
            )

    @property
    def max_model_len(self) -> int | None:
        """The longest request in tokens, reply included, by the engine's own word."""
        return self._facts.max_model_len

    @property
    def longest_start_s(self) -> float:
        """Of its services one after the other, where each takes the time it has."""
        return len(self._group.plans) * self._settings.start_timeout_s

    def facts(self) -> dict[str, Any]:
        """What `run.json` keeps about the target, without secrets."""
        cache = self._facts.cache
        usable = cache.blocks - RESERVED_BLOCKS if cache else None
        sources = self._sources()
        return {
            "name": self._spec.name,
            "url": self.url,
            "model": self.model,
            "argv": {plan.name: without_secrets(plan.argv) for plan in self._group.plans},
            "env": {
                plan.name: hide_variables({k: v for k, v in plan.env.items() if k != KEY_VARIABLE})
                for plan in self._group.plans
            },
            "pids": self._group.pids(),
            "versions": installed_versions(),
            "block_size": cache.block_size if cache else None,
            "usable_blocks": usable,
            "usable_tokens": usable * cache.block_size if cache and usable else None,
            "max_model_len": self.max_model_len,
            "sources": sources,
            "engine_pid": sources["engine"]["pid"],
            "metrics_urls": {plan.name: plan.metrics_url for plan in self._group.plans},
            "l1_gb": self._settings.l1_gb if uses_l1(self._spec) else None,
            **self._fleet(),
            "body": dict(self._spec.body),
        }

    def _fleet(self) -> dict[str, Any]:
        """How many engines a router stands before, and by which policy; of one engine nothing."""
        if self._spec.of_role("router") is None:
            return {}
        return {"replicas": len(self._engines), "router": self._settings.router or USUAL_ROUTER}

    def _sources(self) -> dict[str, Any]:
        """Whom to ask for figures, by role: of several engines the first, with all of them."""
        pids = self._group.pids()
        places = {
            plan.name: {
                "metrics_url": plan.metrics_url,
                "pid": next(iter(pids.get(plan.name, [])), None),
            }
            for plan in self._group.plans
        }
        sources: dict[str, Any] = {}
        for plan in self._group.plans:
            if plan.role in ("engine", "cache") and plan.role not in sources:
                counters = {"counters": plan.counters or "", "series": dict(plan.series)}
                sources[plan.role] = {"name": plan.name, **places[plan.name], **counters}
        if len(self._engines) > 1:
            sources["engine"]["replicas"] = {plan.name: places[plan.name] for plan in self._engines}
        return sources

    def check(self) -> None:
        """Raise TargetError when it can serve no more: a service has exited unasked, or of several
        engines all."""
        self._group.check()

    def check_whole(self) -> None:
        """Raise TargetError when any service has exited unasked."""
        self._group.check_whole()

    @property
    def deaths(self) -> list[EngineDeath]:
        """The engines that have exited unasked since its last start, the first first."""
        return self._group.deaths

    async def wait_died(self) -> TargetError:
        """Return the error once it can serve no more; restarts of ours do not count."""
        return await self._group.wait_died()

    @property
    def is_named(self) -> bool:
        """Whether requests have to name the model in a way that the engine does not list."""
        return self.model != self._settings.name

    async def make_cold(self, touched: bool = True) -> str:
        """Empty every cache and prove it; restart all services where that fails, or an engine died.

        `touched` is whether others have sent requests since the start. Returns "cold". Afterwards
        the caches are empty, or after a restart of services without a reset route hold one prompt
        of ours. Raises TargetError when even that does not help.
        """
        self.check()
        lives, is_whole = self._spec.kv_lives, not self.deaths
        if is_whole and (lives == "request" or (lives == "process" and not touched)):
            return "cold"
        caches = CacheReset(self._group.plans, self.model, self.max_model_len)
        if is_whole and lives is None and await caches.empty_and_prove():
            return "cold"
        self.check()
        await self._group.stop()
        await self.start()
        if lives is None:
            await self._require_cold(caches)
        return "cold"

    async def _require_cold(self, caches: CacheReset) -> None:
        try:
            cached = await caches.probe()
        except ApiError as error:
            raise self._group.error(f"cannot be shown to be cold ({error})") from error
        if cached != 0:
            raise self._group.error(
                f"is not cold after a restart (cached tokens of a fresh prompt: {cached});"
                " empty its persistent cache"
            )
