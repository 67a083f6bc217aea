"""The client's own health: whether it was fast enough for its figures to be trusted."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

import psutil

from loadgen.stats.memory import MB
from loadgen.stats.sketch import Sketch

TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class ClientSample:
    """One second of one client process: a row of `client_metrics.csv`.

    `at_s` counts from the run's start. `cpu_share` is CPU seconds of all threads per second of
    wall time (1.0 is one full core). `send_lateness_p99_ms` is None when nothing was sent.
    """

    at_s: float
    process: str
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    send_lateness_p99_ms: float | None
    cpu_share: float
    rss_mb: float


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(ClientSample))


class LoopWatch:
    """Watches this process from inside its event loop.

    It ticks every 10 ms and notes how late the loop let each tick be. Ticks lie on a fixed grid
    and those a stall swallowed count too, each with its own lateness; else a stall of half a
    second would be one value among fifty good ones. All methods belong to the watched loop.
    """

    def __init__(self, process: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._process = process
        self._clock = clock
        self._due_s = math.inf
        self._lag_ms = Sketch()
        self._late_ms = Sketch()
        self._psutil = psutil.Process()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    async def run(self) -> None:
        """Tick until cancelled."""
        self._due_s = self._clock() + TICK_S
        while True:
            # At least a millisecond: uvloop rounds shorter waits to none and would spin.
            await asyncio.sleep(max(self._due_s - self._clock(), 0.001))
            self._catch_up()

    def _catch_up(self) -> None:
        now_s = self._clock()
        while self._due_s <= now_s:
            self._lag_ms.add((now_s - self._due_s) * 1000)
            self._due_s += TICK_S

    def send_late(self, ms: float) -> None:
        """Note how long after its intended time a request was sent.

        A timer may fire a little early, which counts as 0.
        """
        self._late_ms.add(max(ms, 0.0))

    def sample(self, at_s: float) -> ClientSample:
        """What happened since the last call; to be called each second."""
        self._catch_up()
        lag_ms, self._lag_ms = self._lag_ms, Sketch()
        late_ms, self._late_ms = self._late_ms, Sketch()
        return ClientSample(
            at_s=at_s,
            process=self._process,
            loop_lag_p50_ms=lag_ms.quantile(0.5) or 0.0,
            loop_lag_p99_ms=lag_ms.quantile(0.99) or 0.0,
            loop_lag_max_ms=lag_ms.max or 0.0,
            send_lateness_p99_ms=late_ms.quantile(0.99),
            cpu_share=self._cpu_share(),
            rss_mb=self._psutil.memory_info().rss / MB,
        )

    def _cpu_share(self) -> float:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        elapsed_s, used_s = wall_s - self._wall_s, cpu_s - self._cpu_s
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return used_s / elapsed_s if elapsed_s > 0 else 0.0
