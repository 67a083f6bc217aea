"""Files of KV with a checksum: what is damaged is a miss, in a file alone and in LMCache's tier."""

import resource
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_objects import CHUNKS, SIZE, Objects, bits, content, result

from kv_tiers.checked_file import SUM_BYTES, read_checked, write_checked

FILE_BYTES = SIZE + SUM_BYTES


def flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[SIZE // 3] ^= 1
    path.write_bytes(whole)


def flip_the_sum(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_to_the_content(path: Path) -> None:
    """As a tier without checksums writes it."""
    path.write_bytes(path.read_bytes()[:SIZE])


def add(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another(path: Path) -> None:
    """The file of another chunk under this name."""
    other = path.with_name("other.bin")
    write_checked(other, memoryview(content(9)))
    other.rename(path)


DAMAGE = (flip, flip_the_sum, cut, cut_to_the_content, add, empty, another)


def test_a_file_comes_back_and_is_written_once(tmp_path: Path) -> None:
    path, buffer = tmp_path / "deep" / "a.bin", memoryview(bytearray(SIZE))
    assert read_checked(path, buffer) is None
    assert write_checked(path, memoryview(content(1)))
    assert not write_checked(path, memoryview(content(2)))
    assert read_checked(path, buffer)
    assert bytes(buffer) == content(1)
    assert [each.name for each in path.parent.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("spoil", DAMAGE)
def test_a_damaged_file_is_not_there_and_can_be_written_anew(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    path, buffer = tmp_path / "a.bin", memoryview(bytearray(SIZE))
    write_checked(path, memoryview(content(1)))
    spoil(path)
    assert read_checked(path, buffer) is False
    assert not path.exists()
    assert write_checked(path, memoryview(content(1)))
    assert read_checked(path, buffer)


def test_a_file_of_another_folder_is_none_of_this_one(tmp_path: Path) -> None:
    ours, other = tmp_path / "avx512" / "a.data", tmp_path / "avx2" / "a.data"
    write_checked(other, memoryview(content(1)))
    other.parent.rename(ours.parent)
    assert read_checked(ours, memoryview(bytearray(SIZE))) is False


@pytest.mark.parametrize("most_bytes", [0, SIZE // 2, SIZE + 1])
def test_what_a_full_disk_cannot_take_leaves_nothing(most_bytes: int, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_checked(tmp_path / "a.bin", memoryview(content(1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def adapter_in(folder: Path) -> Any:
    pytest.importorskip("lmcache")
    from kv_tiers.lmcache_files import CheckedFilesAdapter, FSL2AdapterConfig

    return CheckedFilesAdapter(FSL2AdapterConfig.from_dict({"base_path": str(folder)}))


@pytest.fixture
def adapter(tmp_path: Path) -> Any:
    made = adapter_in(tmp_path)
    yield made
    made.close()


def stored(adapter: Any, objects: Objects) -> Any:
    adapter.submit_store_task(objects.keys, objects.buffers)
    (kept,) = result(
        adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks().values()
    )
    return kept


def loaded(adapter: Any, objects: Objects) -> list[int]:
    task = adapter.submit_load_task(objects.keys, objects.buffers)
    return bits(result(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task)))


def looked_up(adapter: Any, objects: Objects) -> list[int]:
    task = adapter.submit_lookup_and_lock_task(objects.keys, {})
    descriptor = adapter.get_lookup_and_lock_event_fd()
    return bits(result(descriptor, lambda: adapter.query_lookup_and_lock_result(task)))


def test_lmcache_gets_back_what_is_whole_and_nothing_else(adapter: Any, tmp_path: Path) -> None:
    objects, again = Objects(), Objects()
    objects.fill()
    kept = stored(adapter, objects)
    assert (kept.is_successful(), kept.bytes_transferred()) == (True, CHUNKS * FILE_BYTES)
    assert stored(adapter, objects).bytes_transferred() == 0, "they are there"
    assert looked_up(adapter, objects) == loaded(adapter, again) == [*range(CHUNKS)]
    assert again.contents == objects.contents

    for path in sorted(tmp_path.rglob("*.data"))[::2]:
        flip(path)
    fresh = Objects()
    whole = loaded(adapter, fresh)
    assert whole == [*range(1, CHUNKS, 2)]
    assert [fresh.contents[at] for at in whole] == [objects.contents[at] for at in whole]
    assert looked_up(adapter, objects) == whole, "a damaged file is gone"
    assert adapter.get_usage().total_bytes_used == len(whole) * FILE_BYTES
    assert stored(adapter, objects).bytes_transferred() == CHUNKS // 2 * FILE_BYTES
    adapter.delete(objects.keys)
    assert adapter.get_usage().total_bytes_used == 0


def test_kv_of_another_kind_of_cpu_is_not_found(
    adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kv_tiers.machine import instruction_set

    objects = Objects()
    objects.fill()
    stored(adapter, objects)
    assert {path.parent.name for path in tmp_path.rglob("*.data")} == {instruction_set()}
    monkeypatch.setattr("kv_tiers.lmcache_files.instruction_set", lambda: "another")
    other = adapter_in(tmp_path)
    try:
        assert looked_up(other, objects) == loaded(other, objects) == []
        assert stored(other, objects).bytes_transferred() == CHUNKS * FILE_BYTES
    finally:
        other.close()


def test_kv_of_another_dtype_under_the_same_keys_is_computed_again(adapter: Any) -> None:
    """As two engines leave it that serve one model in float16 and bfloat16 on one folder."""
    objects, others = Objects(), Objects("float16")
    objects.fill()
    others.fill()
    stored(adapter, others)
    assert looked_up(adapter, objects) == [*range(CHUNKS)]
    assert loaded(adapter, objects) == []
    assert stored(adapter, objects).bytes_transferred() == CHUNKS * FILE_BYTES
    assert loaded(adapter, objects) == [*range(CHUNKS)]


@pytest.mark.parametrize(("what", "submit"), [("read", "load"), ("write", "store")])
def test_no_thread_uses_the_memory_once_the_tier_is_closed(
    what: str, submit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, ended, objects = Event(), Event(), Event(), Objects()

    def slow(path: Path, content: memoryview, kind: str) -> bool:
        begun.set()
        may_end.wait(20)
        ended.set()
        return True

    adapter = adapter_in(tmp_path)
    monkeypatch.setattr(f"kv_tiers.lmcache_files.{what}_checked", slow)
    getattr(adapter, f"submit_{submit}_task")(objects.keys, objects.buffers)
    assert begun.wait(20)
    closing = Thread(target=adapter.close)
    closing.start()
    closing.join(0.5)
    assert closing.is_alive(), "it waits for who is at work"
    may_end.set()
    closing.join(20)
    assert ended.is_set()
    assert not closing.is_alive()


def test_names_as_long_as_a_file_system_takes_them(tmp_path: Path) -> None:
    path, buffer = tmp_path / f"{'a' * 250}.data", memoryview(bytearray(SIZE))
    assert write_checked(path, memoryview(content(1)))
    assert read_checked(path, buffer)


def test_every_task_of_lmcaches_ends_where_nothing_can_be_written(
    adapter: Any, tmp_path: Path
) -> None:
    objects = Objects()
    objects.fill()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        kept = stored(adapter, objects)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (kept.is_successful(), kept.bytes_transferred()) == (False, 0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert loaded(adapter, objects) == []
    without_bytes: Any = SimpleNamespace(keys=objects.keys, buffers=[None] * CHUNKS)
    assert not stored(adapter, without_bytes).is_successful()
    assert loaded(adapter, without_bytes) == []
