"""Hits behind LMCache's memory against its own manager, eviction policy and loop."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("lmcache")
import torch
from lmcache.logging import CustomFormatter
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
)
from lmcache.v1.distributed.error import L1Error
from lmcache.v1.distributed.l1_manager import L1Manager
from lmcache.v1.distributed.storage_controllers.eviction_controller import L1EvictionController

from loadgen.errors import UsageError
from loadgen.locality.lmcache_replay import (
    PERIOD_S,
    PHASES,
    LmcacheReplay,
    LmcacheTier,
    ServedAt,
    frees_in_log,
    rounds_of,
)
from loadgen.locality.trace import Chain, Trace

BLOCK, CHUNK_BYTES = 8, 4096
LAYOUT = MemoryLayoutDesc([torch.Size([CHUNK_BYTES])], [torch.uint8])


class OneRound:
    """In the place of the loop's flag: it ends after one round."""

    def __init__(self) -> None:
        self._rounds = iter((False, True))

    def is_set(self) -> bool:
        return next(self._rounds)


class RealMemory:
    """LMCache's, with what its server and its connector for vLLM ask of it."""

    def __init__(self, chunks: int) -> None:
        memory = L1MemoryManagerConfig(chunks * CHUNK_BYTES, use_lazy=False, shm_name="")
        self._manager = L1Manager(L1ManagerConfig(memory))
        self._controller = L1EvictionController(self._manager, EvictionConfig("LRU"))

    def run_loop(self) -> None:
        self._controller._stop_flag = OneRound()
        self._controller.eviction_loop()

    def leading(self, names: Sequence[int]) -> int:
        keys = [*map(key, names)]
        read = self._manager.reserve_read(keys)
        there = [each for each in keys if read[each][0] == L1Error.SUCCESS]
        known = next((at for at, each in enumerate(keys) if each not in there), len(keys))
        self._manager.finish_read(there)
        self._manager.touch_keys(keys[:known])
        return known

    def store(self, names: Sequence[int]) -> None:
        keys = [*map(key, names)]
        made = self._manager.reserve_write(keys, [False] * len(keys), LAYOUT)
        self._manager.finish_write([each for each in keys if made[each][0] == L1Error.SUCCESS])

    def end(self, names: Sequence[int]) -> None:
        """As its server's `end_session` does."""
        self._manager.touch_keys([*map(key, names)])

    def close(self) -> None:
        self._manager.close()


def key(name: int) -> ObjectKey:
    return ObjectKey(name.to_bytes(8, "big"), "model", 0)


def trace_of(contexts: Sequence[int], blocks: int) -> Trace:
    """One request after the other, each of so many whole blocks of its own context."""
    return Trace(tuple(request(context, blocks) for context in contexts), BLOCK)


def request(context: int, blocks: int) -> Chain:
    """No block is named 0."""
    first = 1000 * (context + 1)
    return Chain(tuple(range(first, first + blocks)), blocks * BLOCK + 1, 1)


def every(step_s: float, requests: int) -> list[ServedAt]:
    return [ServedAt(*(step_s * (at + part) for part in (0, 0.5, 0.8))) for at in range(requests)]


def memory_of(chunks: int, *, is_backed: bool = False) -> LmcacheTier:
    return LmcacheTier(chunks * CHUNK_BYTES, CHUNK_BYTES, BLOCK, is_backed)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return


@pytest.mark.parametrize(("seed", "chunks"), [*((seed, 14) for seed in range(5)), (5, 4)])
def test_each_hit_is_one_of_lmcaches(seed: int, chunks: int) -> None:
    rng = Random(seed)
    trace = trace_of([rng.randrange(6) for _ in range(60)], 4)
    times = every(0.3, len(trace.chains))
    found = [real_share(trace, times, PERIOD_S * at / PHASES, chunks) for at in range(PHASES)]
    shares = LmcacheReplay(trace, times, trace.least_blocks, memory_of(chunks)).shares()
    assert shares == pytest.approx(sorted(found))
    if chunks > 4:
        assert max(found) - min(found) > 0, "the moment of the loop decides something here"


def real_share(trace: Trace, times: Sequence[ServedAt], next_s: float, chunks: int) -> float:
    """With an engine's cache of one request."""
    memory, cached, before = RealMemory(chunks), 0, None

    def run_loop(until_s: float) -> None:
        nonlocal next_s
        while next_s <= until_s:
            memory.run_loop()
            next_s += PERIOD_S

    for sent, at in zip(trace.chains, times, strict=True):
        run_loop(at.sent_s)
        known = memory.leading(sent.blocks)
        cached += max(known, len(sent.blocks) if sent == before else 0) * BLOCK
        run_loop(at.first_token_s)
        memory.store(sent.blocks[known:])
        run_loop(at.end_s)
        memory.end(sent.blocks)
        before = sent
    memory.close()
    return cached / trace.prompt_tokens


def test_with_room_for_all_the_loop_decides_nothing() -> None:
    trace = trace_of([0, 1, 2, 0, 1, 2], 4)
    shares = LmcacheReplay(trace, every(0.3, 6), 5, memory_of(16)).shares()
    assert shares == pytest.approx([12 * BLOCK / trace.prompt_tokens] * PHASES)


def test_a_prompt_is_stored_step_by_step_and_each_step_whole_or_not() -> None:
    """Of eight chunks the first step's four find room, and the second's do not."""
    trace = replace(trace_of([0, 1, 0], 8), step_tokens=4 * BLOCK)
    for chunks, hits in ((7, 4), (3, 0)):
        shares = LmcacheReplay(trace, every(0.001, 3), 9, memory_of(chunks)).shares()
        assert shares[-1] == pytest.approx(hits * BLOCK / trace.prompt_tokens)


def test_chunks_of_several_blocks_are_had_whole() -> None:
    trace = trace_of([0, 1, 0], 7)
    tier = LmcacheTier(100 * CHUNK_BYTES, CHUNK_BYTES, 2 * BLOCK)
    shares = LmcacheReplay(trace, every(0.3, 3), 8, tier).shares()
    assert shares == pytest.approx([6 * BLOCK / trace.prompt_tokens] * PHASES)


def test_what_lies_behind_is_loaded_where_the_memory_has_room_for_it() -> None:
    """Eight chunks fill it, of which one round of the loop drops the last of the first request."""
    first, second, filler = request(0, 4), request(1, 4), request(2, 1)
    for between, is_backed, hits in (
        ([], False, 3),
        ([], True, 4),
        ([filler], True, 3),
    ):
        trace = Trace((first, second, *between, first), BLOCK)
        once_between = [ServedAt(1.3, 1.304, 1.305) for _ in between]
        times = [ServedAt(0.0, 0.1, 0.15), ServedAt(0.2, 0.3, 0.3), *once_between]
        times.append(ServedAt(1.31, 1.4, 1.5))
        shares = LmcacheReplay(trace, times, 5, memory_of(8, is_backed=is_backed)).shares()
        assert shares == pytest.approx([hits * BLOCK / trace.prompt_tokens] * PHASES)


def test_requests_side_by_side_are_refused() -> None:
    trace = Trace((Chain((1,), BLOCK, 1),), BLOCK, users=2)
    with pytest.raises(UsageError, match="one request after the other: here 2"):
        LmcacheReplay(trace, every(1, 1), 2, memory_of(4)).shares()


def test_lmcaches_log_tells_when_its_loop_freed_memory(tmp_path: Path) -> None:
    log, memory, start_s = tmp_path / "lmcache.log", RealMemory(10), time.time()
    handler = logging.FileHandler(log)
    handler.setFormatter(CustomFormatter())
    logger = logging.getLogger(L1EvictionController.__module__)
    logger.addHandler(handler)
    try:
        memory.run_loop()
        memory.store(range(7))
        memory.run_loop()
        memory.store([7, 8])
        memory.run_loop()
    finally:
        logger.removeHandler(handler)
        handler.close()
        memory.close()
    assert frees_in_log(log, start_s - 5, 60.0) == pytest.approx([5.0], abs=1.0)
    assert frees_in_log(log, start_s - 5, 2.0) == []
    assert frees_in_log(log, start_s + 60, 60.0) == []


def test_rounds_between_those_of_the_log_are_spread_evenly() -> None:
    rounds = islice(rounds_of([2.25, 5.31, 6.31]), 9)
    assert [*rounds] == pytest.approx([0.25, 1.25, 2.25, 3.27, 4.29, 5.31, 6.31, 7.31, 8.31])


def test_known_moments_of_the_loop_settle_the_hits() -> None:
    rng = Random(3)
    trace = trace_of([rng.randrange(6) for _ in range(60)], 4)
    times = every(0.3, len(trace.chains))
    replay = LmcacheReplay(trace, times, trace.least_blocks, memory_of(14))
    by_phase = [replay.share(count(PERIOD_S * at / PHASES, PERIOD_S)) for at in range(PHASES)]
    assert min(by_phase) < max(by_phase)
    for share, at in zip(by_phase, range(PHASES), strict=True):
        assert replay.share(rounds_of([7 * PERIOD_S + PERIOD_S * at / PHASES])) == share
