"""`kvswarm rag serve` as a process, and how late it says its event loop was."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

START_S, STOP_S = 300.0, 20.0
LAG = "kvswarm_rag_loop_lag_seconds"


@dataclass(frozen=True, slots=True)
class Lag:
    """A histogram: how many readings were at most so many seconds, by that limit."""

    at_most: Mapping[float, float]

    def since(self, before: "Lag") -> "Lag":
        """The readings after an earlier one of these."""
        return Lag({limit: held - before.at_most[limit] for limit, held in self.at_most.items()})

    def percentile_ms(self, share: float) -> float:
        """Interpolated in its bucket, as Prometheus' histogram_quantile; 0 of no readings."""
        limits = sorted(self.at_most)
        wanted = share * self.at_most[limits[-1]]
        low_s = below = 0.0
        for limit_s in limits:
            held = self.at_most[limit_s]
            if held >= wanted and held > below:
                top_s = low_s if limit_s == float("inf") else limit_s
                return (low_s + (top_s - low_s) * (wanted - below) / (held - below)) * 1000
            low_s, below = limit_s, held
        return 0.0


async def read_lag(session: aiohttp.ClientSession, url: str) -> Lag:
    """The service's histogram as it is now."""
    async with session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    return lag_of(page)


def lag_of(page: str) -> Lag:
    """The histogram on a metrics page."""
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    held = {float(s.labels["le"]): s.value for s in samples if s.name == f"{LAG}_bucket"}
    return Lag(held)


@asynccontextmanager
async def service(path: Path, *options: str) -> AsyncIterator[str]:
    """Its url. Raises RuntimeError where it does not start; it is stopped whatever happens."""
    command = ("-m", "rag_store", "serve", "--port", "0", "--path", str(path), *options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
        found = re.search(r"http://\S+", line)
        if not found:
            raise RuntimeError(f"kvswarm rag serve on {path} did not start: {line}")
        yield found[0]
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
