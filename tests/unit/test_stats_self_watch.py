import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import asdict

import pytest

from loadgen.stats.self_watch import COLUMNS, LoopWatch


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.asynccontextmanager
async def running(watch: LoopWatch) -> AsyncIterator[LoopWatch]:
    ticking = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    yield watch
    ticking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticking


async def test_ticks_a_stall_swallowed_count_with_their_own_lateness() -> None:
    clock = FakeClock()
    async with running(LoopWatch("w1", clock)) as watch:
        clock.now_s += 0.505
        stalled = watch.sample(1.0)
        clock.now_s += 0.01
        fine = watch.sample(2.0)
    assert stalled.loop_lag_max_ms == pytest.approx(495)
    assert stalled.loop_lag_p99_ms == pytest.approx(490, rel=0.01)
    assert stalled.loop_lag_p50_ms == pytest.approx(250, rel=0.01)
    assert fine.loop_lag_max_ms == pytest.approx(5)


async def test_without_a_free_descriptor_the_memory_is_that_of_before() -> None:
    watch = LoopWatch("w1")
    before_mb = watch.sample(1.0).rss_mb
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno(), limits[1]))
        try:
            sample = watch.sample(2.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sample.rss_mb == before_mb > 0


async def test_the_watch_sees_a_blocked_loop() -> None:
    async with running(LoopWatch("w1")) as watch:
        await asyncio.sleep(0.02)
        time.sleep(0.2)  # noqa: ASYNC251 - blocking the loop is the point
        sample = watch.sample(3.0)
    assert sample.loop_lag_max_ms > 150
    assert sample.loop_lag_max_ms >= sample.loop_lag_p99_ms >= sample.loop_lag_p50_ms
    assert tuple(asdict(sample)) == COLUMNS
    assert (sample.at_s, sample.process) == (3.0, "w1")
    assert sample.rss_mb > 5


def test_cpu_share_is_that_of_the_time_since_the_last_sample() -> None:
    watch = LoopWatch("w1")
    deadline_s = time.process_time() + 0.05
    while time.process_time() < deadline_s:
        pass
    assert watch.sample(1.0).cpu_share > 0
    watch._cpu_s = time.process_time()
    watch._wall_s = time.perf_counter() - 1000
    assert watch.sample(2.0).cpu_share < 0.1


def test_a_watch_that_does_not_run_yet_has_no_lag() -> None:
    sample = LoopWatch("w1").sample(0.0)
    assert (sample.loop_lag_p99_ms, sample.send_lateness_p99_ms) == (0.0, None)


def test_each_sample_tells_only_its_own_second() -> None:
    watch = LoopWatch("w1")
    watch.send_late(40.0)
    assert watch.sample(1.0).send_lateness_p99_ms == 40.0
    assert watch.sample(2.0).send_lateness_p99_ms is None


async def test_a_pause_is_one_sample_that_stands_for_its_time() -> None:
    clock = FakeClock()
    async with running(LoopWatch("w1", clock)) as watch:
        clock.now_s += 3600.0
        paused = watch.sample(1.0)
        clock.now_s += 1.0
        after = watch.sample(2.0)
    assert (paused.elapsed_s, after.elapsed_s) == (3600.0, 1.0)
    assert paused.loop_lag_max_ms == pytest.approx(3.6e6, rel=0.01)


def test_late_sends_are_counted() -> None:
    watch = LoopWatch("w1", max_lag_ms=30.0)
    for late_ms in (-1.0, 30.0, 31.0):
        watch.send_late(late_ms)
    sample = watch.sample(1.0)
    assert (sample.sends, sample.late_sends) == (3, 1)


def test_a_timer_that_fires_early_is_not_late() -> None:
    watch = LoopWatch("w1")
    watch.send_late(-0.4)
    assert watch.sample(1.0).send_lateness_p99_ms == 0.0
