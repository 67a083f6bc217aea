"""Offload without a model: whatever the tiers give back is the KV of the tokens it stands for."""

import gc
import random
import resource
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ask import Ask
from digest_engine import BLOCK_BYTES, DigestEngine, tier
from tier_soak import DEADLINE_S, FAULTS, OF_CHECKED_FILES, TierSoak, flip
from virtual_load import tokens
from vllm.v1.kv_offload.base import make_offload_key

CONTEXTS, CONTEXT_TOKENS = 8, 150
ALL_CHUNKS = CONTEXTS * (CONTEXT_TOKENS // 16 + 3)


def ask(number: int, context: int, output_tokens: int = 2) -> Ask:
    prompt = tokens(CONTEXT_TOKENS + 16 * (context % 3), "tier", context)
    return Ask(
        f"r{number}",
        f"c{context}",
        prompt + tokens(5, "question", number),
        output_tokens=output_tokens,
    )


def one_by_one(engine: DigestEngine, rounds: int = 3) -> None:
    """Each context in turn: a cache for two of them never has the next."""
    for number in range(rounds * CONTEXTS):
        engine.submit(ask(number, number % CONTEXTS))
        engine.run()
        engine.settle()


class Mixture:
    """Requests at once, clients that go away and operators who empty caches, from one seed."""

    def __init__(self, seed: int, engine: DigestEngine) -> None:
        self.dice = random.Random(seed)
        self.engine = engine
        self.sent = 0

    def run(self, rounds: int = 25) -> None:
        for _ in range(rounds):
            for _ in range(self.dice.choice([0, 1, 3, 6])):
                output_tokens = self.dice.choice([1, 4, 40])
                self.engine.submit(ask(self.sent, self.dice.randrange(CONTEXTS), output_tokens))
                self.sent += 1
            for _ in range(self.dice.randrange(12)):
                self.engine.step()
            if self.sent and self.dice.random() < 0.2:
                self.engine.abort(f"r{self.dice.randrange(self.sent)}")
            if self.dice.random() < 0.1:
                self.engine.reset(connector=self.dice.random() < 0.5)
        self.engine.run()


@pytest.mark.parametrize("kind", ["host", "disk", "checked"])
@pytest.mark.parametrize(
    ("chunks", "more"),
    [(ALL_CHUNKS, {}), (30, {"eviction_policy": "arc"}), (14, {"blocks_per_chunk": 3})],
)
def test_no_cell_that_is_read_is_of_other_tokens(
    kind: str, chunks: int, more: dict[str, Any], tmp_path: Path
) -> None:
    with DigestEngine(40, tier(kind, chunks, tmp_path, **more)) as engine:
        Mixture(chunks, engine).run()
        assert engine.loaded_bytes > 0, "nothing came from the tier"
        assert (engine.wrong, engine.checked > 50_000) == (0, True)


def test_memory_for_all_contexts_leaves_the_least_to_compute(tmp_path: Path) -> None:
    computed = {}
    for chunks in (4, ALL_CHUNKS):
        with DigestEngine(24, tier("host", chunks, tmp_path)) as engine:
            one_by_one(engine)
            computed[chunks] = engine.computed_tokens
            assert engine.wrong == 0
    prompts = [ask(n, n % CONTEXTS).prompt for n in range(3 * CONTEXTS)]
    first = sum(len(prompt) for prompt in prompts[:CONTEXTS])
    # What lies behind the full blocks of a context, and the token that a reply's second one needs.
    later = sum((len(prompt) - 5) % 16 + 5 for prompt in prompts[CONTEXTS:])
    assert computed[ALL_CHUNKS] == first + later + len(prompts)
    assert computed[4] == sum(map(len, prompts)) + len(prompts)


@pytest.mark.parametrize("kind", ["disk", "checked"])
def test_a_folder_is_read_by_the_next_engine_and_holds_what_memory_cannot(
    kind: str, tmp_path: Path
) -> None:
    extra = tier(kind, 16, tmp_path)
    with DigestEngine(24, extra) as engine:
        one_by_one(engine, rounds=1)
    with DigestEngine(24, extra) as engine:
        one_by_one(engine, rounds=1)
        assert engine.wrong == 0
        # The files of all contexts, but nothing of a question, and a second token of each reply.
        tails = sum((len(ask(n, n).prompt) - 5) % 16 + 5 for n in range(CONTEXTS))
        assert engine.computed_tokens == tails + CONTEXTS
    assert not list(Path("/dev/shm").glob("vllm_offload_digest-*")), "memory is left behind"


def test_loads_take_as_long_as_over_the_link_they_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s: list[float] = []
    clock = SimpleNamespace(perf_counter=lambda: 0.0, sleep=waited_s.append)
    monkeypatch.setattr("kv_tiers.worker.time", clock)
    extra = tier("host", ALL_CHUNKS, tmp_path, load_bytes_per_s=1e6)
    with DigestEngine(24, extra) as engine:
        one_by_one(engine)
        assert engine.loaded_bytes > 0
        assert sum(waited_s) == pytest.approx(engine.loaded_bytes / 1e6)
        assert engine.wrong == 0
    with pytest.raises(ValueError, match="load_bytes_per_s 0 is no bandwidth"):
        DigestEngine(24, {**extra, "load_bytes_per_s": 0})


def test_an_emptied_tier_gives_nothing_back(tmp_path: Path) -> None:
    with DigestEngine(24, tier("host", ALL_CHUNKS, tmp_path)) as engine:
        one_by_one(engine, rounds=1)
        computed = engine.computed_tokens
        assert engine.reset(connector=True)
        one_by_one(engine, rounds=1)
        assert engine.computed_tokens == 2 * computed


def flip_after_load(engine: DigestEngine, folder: Path) -> None:
    submit_load: Callable[..., bool] = engine.worker.submit_load

    def corrupted(job_id: int, source: Any, target: Any) -> bool:
        done = submit_load(job_id, source, target)
        engine.cells[0][int(target.block_ids[0]), 0, 3] ^= 1
        return done

    engine.worker.submit_load = corrupted


def flip_a_byte_of_each_file(engine: DigestEngine, folder: Path) -> None:
    flip_each_file(folder)


def flip_each_file(folder: Path) -> None:
    for path in folder.rglob("*.bin"):
        flip(path)


@pytest.mark.parametrize("corrupt", [flip_after_load, flip_a_byte_of_each_file])
def test_one_wrong_bit_would_be_seen(
    corrupt: Callable[[DigestEngine, Path], None], tmp_path: Path
) -> None:
    with DigestEngine(24, tier("disk", 16, tmp_path)) as engine:
        one_by_one(engine, rounds=1)
        assert engine.wrong == 0
        corrupt(engine, tmp_path)
        one_by_one(engine, rounds=1)
        assert engine.wrong > 0


def cut_each_file(folder: Path) -> None:
    for path in folder.rglob("*.bin"):
        path.write_bytes(path.read_bytes()[:-8])


def empty_each_file(folder: Path) -> None:
    for path in folder.rglob("*.bin"):
        path.write_bytes(b"")


def remove_each_file(folder: Path) -> None:
    for path in folder.rglob("*.bin"):
        path.unlink()


def exchange_files(folder: Path) -> None:
    """Each has what another had."""
    contents = {path: path.read_bytes() for path in sorted(folder.rglob("*.bin"))}
    for path, content in zip(contents, [*contents.values()][::-1], strict=True):
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        *((kind, cut_each_file) for kind in ("disk", "checked")),
        *((kind, empty_each_file) for kind in ("disk", "checked")),
        *((kind, remove_each_file) for kind in ("disk", "checked")),
        *(("checked", spoil) for spoil in (flip_each_file, exchange_files)),
    ],
)
def test_files_that_are_not_whole_are_computed_again(
    kind: str, spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    extra, computed = tier(kind, 16, tmp_path), list[int]()
    for _ in range(2):
        with DigestEngine(24, extra) as engine:
            one_by_one(engine, rounds=1)
            assert engine.wrong == 0
            computed.append(engine.computed_tokens)
        spoil(tmp_path)
    assert computed[0] == computed[1]


def test_files_of_another_kind_of_cpu_are_none_of_ours_and_a_folder_may_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(folder: Path) -> int:
        with DigestEngine(24, tier("checked", 16, folder)) as engine:
            one_by_one(engine, rounds=1)
            assert engine.wrong == 0
            return engine.computed_tokens

    first = computed(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert computed(tmp_path / "there") < first
    (kind,) = (tmp_path / "there").iterdir()
    kind.rename(kind.with_name("another"))
    monkeypatch.setattr("kv_tiers.vllm_files.instruction_set", lambda: "another")
    assert computed(tmp_path / "there") == first


@pytest.mark.parametrize("kind", ["disk", "checked"])
def test_a_full_disk_costs_its_hits_and_nothing_else(kind: str, tmp_path: Path) -> None:
    """A limit on the size of files stands in for it: every write fails."""
    with DigestEngine(24, tier(kind, 16, tmp_path)) as engine:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
        try:
            one_by_one(engine)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert engine.wrong == 0
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {path.name for path in files if path.stat().st_size} <= {"config.json"}


def test_chunks_before_one_that_cannot_be_checked_are_kept(tmp_path: Path) -> None:
    with DigestEngine(24, tier("checked", 16, tmp_path)) as engine:
        (files,) = engine.scheduler.connector.connector_scheduler.manager.secondary_tiers
        keys = [make_offload_key(bytes([at]) * 32, 0) for at in range(3)]
        files._store(keys, range(3))
        path = files._path(keys[2])
        files._load(1, keys, range(3))
        assert 1 not in files._load_progress, "all are whole"
        path.with_suffix(".sum").unlink()
        path.with_suffix(".sum").mkdir()
        with pytest.raises(OSError, match="is not what was written"):
            files._load(1, keys, range(3))
        assert files._load_progress[1] == 2
        assert path.exists(), "it may be whole"


class Failed(OSError):
    """One that can be watched."""


def test_a_load_that_failed_keeps_nothing_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Failed

    monkeypatch.setattr("kv_tiers.vllm_files.batch_load_block", fail)
    with DigestEngine(24, tier("checked", 16, tmp_path)) as engine:
        (files,) = engine.scheduler.connector.connector_scheduler.manager.secondary_tiers
        gc.disable()
        try:
            try:
                files._load(1, [], [])
            except Failed as error:
                watched = weakref.ref(error)
            assert watched() is None
        finally:
            gc.enable()


def test_a_hundred_turnovers_in_hours_leave_a_tier_as_good_as_new(tmp_path: Path) -> None:
    blocks, extra = 30, tier("host", 40, tmp_path)
    with DigestEngine(blocks, extra) as new, DigestEngine(blocks, extra) as old:
        soak = TierSoak(old, seed=7)
        soak.run(hours=3.5)
        assert old.stored_bytes >= 100 * 40 * BLOCK_BYTES
        assert old.loaded_bytes > 0
        assert old.reset(connector=True)
        computed = old.computed_tokens
        one_by_one(new)
        one_by_one(old)
        assert old.computed_tokens - computed == new.computed_tokens
        assert (old.wrong, old.free_blocks) == (0, blocks)
        assert soak.longest_s < DEADLINE_S


@pytest.mark.parametrize(("kind", "faults"), [("disk", FAULTS), ("checked", OF_CHECKED_FILES)])
def test_hours_of_files_that_are_damaged_or_vanish_under_a_live_engine(
    kind: str, faults: Sequence[Callable[[Path], None]], tmp_path: Path
) -> None:
    with DigestEngine(30, tier(kind, 40, tmp_path)) as engine:
        soak = TierSoak(engine, seed=8, files=tmp_path, faults=faults)
        soak.run(hours=2)
        assert soak.spoilt > 40
        assert engine.loaded_bytes > engine.stored_bytes > 0
        assert (engine.wrong, engine.free_blocks) == (0, 30)
        assert soak.longest_s < DEADLINE_S
