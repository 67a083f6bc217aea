"""The engines of one case: vLLM as it is and vLLM with the plugin, side by side on this machine."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduler_batches import BLOCK_TOKENS

from loadgen.client.client import StreamingClient
from loadgen.client.settings import ClientSettings
from loadgen.launch.target_run import demo_model
from loadgen.stats.server_metrics import MetricsSource, MetricsSources
from loadgen.targets.catalog import load_catalog
from loadgen.targets.context_scheduler import ContextSchedulerSettings
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget, start_target

STOCK = "stock"
REQUEST_TIMEOUT_S = 120.0
START_TIMEOUT_S = 240.0
TARGETS = Path(__file__).with_name("scheduler_targets.toml")


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What the engines of a case have in common.

    `blocks` are usable KV blocks of 128 tokens; `l1_gb` is LMCache's memory, None without.
    """

    blocks: int
    l1_gb: float | None = None

    @property
    def name(self) -> str:
        """Of a folder, unique for each setup."""
        name = f"{self.blocks}-blocks"
        return name + (f"-l1-{self.l1_gb:g}" if self.l1_gb is not None else "")

    def target(self, policy: str) -> str:
        """The target's name in the catalog."""
        base = "vllm" if self.l1_gb is None else "vllm-lmcache"
        return f"{base}-{'multiprocess' if policy == STOCK else 'context'}"

    def settings(self, policy: str) -> TargetSettings:
        """The target's settings."""
        return TargetSettings(
            model=str(demo_model("tiny")),
            kv_tokens=self.blocks * BLOCK_TOKENS,
            l1_gb=1.0 if self.l1_gb is None else self.l1_gb,
            start_timeout_s=START_TIMEOUT_S,
            context_scheduler=ContextSchedulerSettings(policy=None if policy == STOCK else policy),
        )


@dataclass(frozen=True, slots=True)
class Server:
    """A running engine and a client of it."""

    target: RunningTarget
    client: StreamingClient

    @property
    def sources(self) -> MetricsSources:
        """Where its counters are."""
        told = self.target.facts()["sources"]["engine"]
        return MetricsSources(MetricsSource(told["metrics_url"], told["series"]))


@asynccontextmanager
async def running(
    setup: EngineSetup, policies: Iterable[str], log_dir: Path
) -> AsyncIterator[dict[str, Server]]:
    """All engines of a setup by policy, started at once. Idle ones cost nothing.

    Raises TargetError; nothing is left running, whatever happens.
    """
    async with AsyncExitStack() as stack:
        starts = {
            policy: asyncio.create_task(_start(setup, policy, log_dir, stack))
            for policy in dict.fromkeys(policies)
        }
        try:
            await asyncio.gather(*starts.values())
        finally:
            for start in starts.values():
                start.cancel()
            await asyncio.gather(*starts.values(), return_exceptions=True)
        yield {policy: start.result() for policy, start in starts.items()}


async def _start(setup: EngineSetup, policy: str, log_dir: Path, stack: AsyncExitStack) -> Server:
    spec = load_catalog(TARGETS)[setup.target(policy)]
    starting = start_target(spec, setup.settings(policy), log_dir / setup.name / policy)
    target = await stack.enter_async_context(starting)
    settings = ClientSettings(
        url=target.url,
        model=target.model,
        ignore_eos=True,
        continuous_usage=True,
        timeout_s=REQUEST_TIMEOUT_S,
    )
    return Server(target, await stack.enter_async_context(StreamingClient(settings)))
