"""Chroma as it really is: each of its traps, and what a library makes of them."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
import pytest
from raw_host import http, raw_host

import rag_store.chroma as chroma_module
import rag_store.store as store_module
from rag_store.documents import Chunker, Document
from rag_store.embedders import EmbedderSpec, HashingEmbedder
from rag_store.embedders.protocol import Embedding, Vectors
from rag_store.errors import (
    EmbedderError,
    FingerprintError,
    RagError,
    RagUsageError,
    StoreError,
)
from rag_store.library import open_library
from rag_store.settings import Fingerprint, Settings
from rag_store.state_files import StateFiles, states_in_memory
from rag_store.store import ChunkStore, Entry, Row

MAKE = Fingerprint("hashing", "none", 3, "sum", 128, 32)


def settings(path: Path, **changes: object) -> Settings:
    return replace(Settings(path=path, embedder=EmbedderSpec("hashing", dim=64)), **changes)


def documents(count: int, words: int = 300) -> list[Document]:
    return [
        Document(f"d{at}", f"Title {at}", " ".join(f"w{at}x{n}" for n in range(words)))
        for at in range(count)
    ]


def many() -> list[Document]:
    return documents(400, words=80)


def rows_of(store: ChunkStore) -> list[tuple[Row, Vectors]]:
    return list(store.rows(store.row_ids()))


def row(at: int, text: str = "text") -> Row:
    return Row("doc", "title", "digest", at, 2, 0, text, 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    store = ChunkStore(settings(tmp_path), MAKE)
    yield store
    store.close()


def test_a_row_written_again_is_replaced(store: ChunkStore) -> None:
    vector = np.eye(3, dtype=np.float32)
    store.write([row(0, "old")], vector[:1])
    store.write([row(0, "new")], vector[1:2])
    [(found, vector)] = rows_of(store)
    assert found.text == "new"
    assert vector.tolist() == [0, 1, 0]


def test_more_rows_than_a_batch(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store._client.get_max_batch_size() >= store_module.BATCH_ROWS
    monkeypatch.setattr(store_module, "BATCH_ROWS", 100)
    vectors = np.random.default_rng(0).standard_normal((250, 3)).astype(np.float32)
    store.write([row(at) for at in range(250)], vectors)
    assert len(rows_of(store)) == 250
    store.delete([row(at).row_id for at in range(250)])
    assert rows_of(store) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"theirs": 1}, "text"), ({"ordinal": "first"}, "text"), ({}, None), (None, "text")],
)
def test_a_damaged_row_and_one_of_others_are_named(
    store: ChunkStore, changes: dict[str, Any] | None, text: str | None
) -> None:
    store.write([row(0)], np.eye(3, dtype=np.float32)[:1])
    kept = None if changes is None else {**row(1).metadata(), **changes}
    store._collection.add(
        ids=["odd\nrow"], embeddings=[[0.0, 1.0, 0.0]], metadatas=[kept], documents=[text]
    )
    with pytest.raises(StoreError, match=r"^Chroma's row 'odd\\nrow' is damaged, or was not wri"):
        rows_of(store)


def test_distances_are_cosines_and_hnsw_keeps_its_recall(tmp_path: Path) -> None:
    store = ChunkStore(settings(tmp_path), replace(MAKE, dim=32))
    vectors = np.random.default_rng(0).standard_normal((1500, 32)).astype(np.float32)
    store.write([row(at) for at in range(1500)], vectors * 7)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    hits = 0
    for query in unit[:20]:
        ids, cosines = store.nearest(query)
        truth = unit @ query
        assert cosines[0] == pytest.approx(1, abs=1e-5)
        hits += len({row(int(at)).row_id for at in np.argsort(-truth)[:10]} & set(ids[:10]))
    store.close()
    assert hits >= 198


def test_a_note_does_not_wipe_the_fingerprint(tmp_path: Path) -> None:
    store = ChunkStore(settings(tmp_path), MAKE)
    store.set_note("threshold", "one")
    store.set_note("threshold", "two")
    store.close()
    again = ChunkStore(settings(tmp_path), MAKE)
    assert again.note("threshold") == "two"
    assert again.note("other") is None
    again.close()


@pytest.mark.parametrize(
    "other",
    [replace(MAKE, weights="abc"), replace(MAKE, dim=4), replace(MAKE, overlap_tokens=16)],
)
def test_a_collection_of_another_make_is_refused(tmp_path: Path, other: Fingerprint) -> None:
    ChunkStore(settings(tmp_path), MAKE).close()
    with pytest.raises(FingerprintError, match="kvswarm rag index --rebuild"):
        ChunkStore(settings(tmp_path), other)
    ChunkStore(settings(tmp_path, rebuild=True), other).close()


def test_only_what_another_make_left_is_renewed(tmp_path: Path) -> None:
    held = []
    for at, fingerprint in enumerate((MAKE, MAKE, replace(MAKE, dim=4))):
        store = ChunkStore(settings(tmp_path, renew=True), fingerprint)
        store.write([row(at)], np.ones((1, fingerprint.dim), np.float32))
        held.append((store.dropped, len(store.row_ids())))
        store.close()
    assert held == [(False, 1), (False, 2), (True, 1)]


def test_a_library_of_an_earlier_version_is_refused_in_one_line(tmp_path: Path) -> None:
    """Such as one with an adapter, or with expansions."""
    earlier = replace(MAKE, embedder="hashing+adapter", schema=3)
    ChunkStore(Settings(tmp_path), earlier).close()
    said = "'default' was made by another version of kvswarm: choose .* --rebuild$"
    with pytest.raises(FingerprintError, match=said):
        ChunkStore(Settings(tmp_path), MAKE)
    ChunkStore(Settings(tmp_path, rebuild=True), MAKE).close()
    ChunkStore(Settings(tmp_path), MAKE).close()


def test_collections_of_others_are_refused(tmp_path: Path) -> None:
    quiet = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path), quiet)
    client.create_collection("theirs", embedding_function=None)
    note = {"kvswarm_fingerprint": MAKE.as_json()}
    client.create_collection("euclid", metadata=note, embedding_function=None)
    for how in ({}, {"rebuild": True}, {"renew": True}):
        with pytest.raises(FingerprintError, match="not made by kvswarm"):
            ChunkStore(settings(tmp_path, collection="theirs", **how), MAKE)
    assert "theirs" in {each.name for each in client.list_collections()}
    with pytest.raises(FingerprintError, match="measures by l2, not cosine"):
        ChunkStore(settings(tmp_path, collection="euclid"), MAKE)


def test_a_second_process_is_kept_out(store: ChunkStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in use by another process"):
        ChunkStore(settings(tmp_path), MAKE)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no Chroma server answers at http://127\.0\.0\.1:9 \("):
        ChunkStore(settings(tmp_path, chroma_url="http://127.0.0.1:9"), MAKE)
    with pytest.raises(RagUsageError, match="give http://host:port"):
        ChunkStore(settings(tmp_path, chroma_url="localhost:9"), MAKE)


@pytest.mark.parametrize(
    "reply",
    [
        http(404, ""),
        http(404, "<html>\x1b[31m\nnot here</html>"),
        http(200, "<html></html>"),
        http(200, "{}"),
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
def test_a_server_that_is_no_chroma(tmp_path: Path, reply: bytes) -> None:
    with raw_host(reply) as url, pytest.raises(StoreError) as refused:
        ChunkStore(settings(tmp_path, chroma_url=url), MAKE)
    said = str(refused.value)
    assert f"no Chroma server answers at {url} (" in said
    assert said.endswith("start one there, or name another --chroma-url")
    assert said.isprintable()


@pytest.mark.parametrize("host", ["[::1]", "http-store"])
def test_chromas_client_asks_the_host_and_port_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    found, asked = socket.getaddrinfo, list[bytes]()
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *more: found("127.0.0.1", *more))
    with raw_host(http(200, "{}"), asked) as url, pytest.raises(StoreError):
        ChunkStore(settings(tmp_path, chroma_url=url.replace("127.0.0.1", host)), MAKE)
    assert any(b"/api/v2/auth/identity" in each for each in asked)


def test_a_server_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chroma_module, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreError, match=f"no Chroma server answers at {url} \\("):
            ChunkStore(settings(tmp_path, chroma_url=url), MAKE)


async def test_ingest_adds_updates_leaves_and_prunes(tmp_path: Path) -> None:
    first, second, third = documents(3)
    async with open_library(settings(tmp_path)) as library:
        report = await library.ingest([first, second])
        assert (report.added, report.updated, report.unchanged, report.removed) == (2, 0, 0, 0)
        changed = replace(second, text="a short text instead")
        report = await library.ingest([changed, third], prune=True)
        assert (report.added, report.updated, report.unchanged, report.removed) == (1, 1, 0, 1)
        assert library.doc_ids == ("d1", "d2")
        assert await library.put(changed) == "unchanged"
        assert await library.remove("d2") is True
        assert await library.remove("d2") is False
    async with open_library(settings(tmp_path)) as library:
        assert library.document("d1") == changed
        assert library.size.chunks == 1


async def test_the_same_id_twice_is_refused(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        with pytest.raises(RagUsageError, match="same id"):
            await library.ingest([documents(1)[0], documents(1)[0]])
        with pytest.raises(RagUsageError, match="needs an id and a text"):
            await library.ingest([Document("empty", "", " ")])


async def test_progress_counts_what_is_written(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(documents(2))
        await library.ingest(documents(5), lambda done, count: steps.append((done, count)))
    assert steps == sorted(steps), "it is also told within a document"
    assert sorted(set(steps)) == [(0, 3), (1, 3), (2, 3), (3, 3)]


async def test_an_ingest_ends_in_the_midst_of_a_document(tmp_path: Path) -> None:
    told: list[int] = []

    def progress(done: int, count: int) -> None:
        told.append(done)
        if len(told) == 3:
            raise RagError("interrupted")

    async with open_library(settings(tmp_path)) as library:
        with pytest.raises(RagError, match="interrupted"):
            await library.ingest(documents(1, words=20_000), progress)
        assert told == [0, 0, 0]
        assert library.doc_ids == ()


async def test_an_update_cut_short_leaves_the_old_version(tmp_path: Path) -> None:
    [document] = documents(1)
    async with open_library(settings(tmp_path)) as library:
        await library.ingest([document])
        entry = library._index.entries["d0"]
        # What a kill -9 between two batches leaves: a part of a newer version.
        part = replace(entry.rows[0], digest="f" * 32, written_ns=entry.rows[0].written_ns + 1)
        library._index.store.write([part], entry.vectors[:1])
    async with open_library(settings(tmp_path)) as library:
        assert library.document("d0") == document
        assert len(library._index.store.row_ids()) == library.size.chunks + 1, "opening only reads"
        assert await library.put(document) == "unchanged"
        assert len(library._index.store.row_ids()) == library.size.chunks


async def test_an_update_cut_short_after_its_last_row_is_the_new_version(tmp_path: Path) -> None:
    [old] = documents(1)
    new = replace(old, text=old.text + " and more")
    async with open_library(settings(tmp_path)) as library:
        await library.ingest([old])
        list(library._index.writer.write([new]))
    async with open_library(settings(tmp_path)) as library:
        assert library.document("d0") == new


async def test_a_document_that_was_removed_after_a_failed_update_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [old] = documents(1)

    def failing(store: ChunkStore, row_ids: list[str]) -> None:
        if row_ids:
            raise StoreError("the disk is full")

    async with open_library(settings(tmp_path)) as library:
        await library.put(old)
        with monkeypatch.context() as patched:
            patched.setattr(ChunkStore, "delete", failing)
            with pytest.raises(StoreError, match="the disk is full"):
                await library.put(replace(old, text=old.text + " and more"))
        assert await library.remove("d0") is True
        assert library._index.store.row_ids() == []
    async with open_library(settings(tmp_path)) as library:
        assert library.doc_ids == ()


async def test_states_go_with_the_version_they_are_of(tmp_path: Path) -> None:
    first, second = documents(2)
    async with open_library(settings(tmp_path)) as library:
        await library.ingest([first, second])
        await library.put(replace(first, text="another text"))
        await library.remove("d1")
        kept = [entry.digest for entry in library._index.entries.values()]
        assert [path.stem for path in (tmp_path / "states").rglob("*.states")] == kept


async def test_an_embedder_that_fails_at_a_document_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = HashingEmbedder.embed

    def failing(embedder: HashingEmbedder, texts: list[str]) -> list[Embedding]:
        if any("w1x" in text for text in texts):
            raise RuntimeError("index out of range")
        return embed(embedder, texts)

    monkeypatch.setattr(HashingEmbedder, "embed", failing)
    async with open_library(settings(tmp_path)) as library:
        told = "^document 'd1': the embedder failed: index out of range$"
        with pytest.raises(EmbedderError, match=told):
            await library.ingest(documents(2))


@pytest.mark.parametrize("at_page", [0, 1])
async def test_what_changes_while_it_is_read_takes_nothing_else_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_page: int
) -> None:
    wanted = {each.doc_id: each for each in documents(12)}
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(list(wanted.values()))
        updated = replace(wanted["d7"], text="updated meanwhile")
        await library.put(updated)
        entries = dict(library._index.entries)
        await library.put(wanted["d7"])
    _change_between_pages(monkeypatch, at_page, entries["d2"], entries["d7"])
    async with open_library(settings(tmp_path)) as library:
        del wanted["d2"]
        wanted["d7"] = updated
        # The removed one is known where its rows had been read before.
        assert set(library.doc_ids) - {"d2"} == wanted.keys()
        assert all(library.document(doc_id) == each for doc_id, each in wanted.items())
        assert await library.put(wanted["d0"]) == "unchanged"
        rows = [row for each in wanted for row in library._index.entries[each].row_ids]
        assert sorted(library._index.store.row_ids()) == sorted(rows)


def _change_between_pages(
    monkeypatch: pytest.MonkeyPatch, at_page: int, removed: Entry, updated: Entry
) -> None:
    """Does what another process would do, after a page of few rows has been read."""
    pages = ChunkStore._page
    numbers = itertools.count()

    def changing(store: ChunkStore, **which: Any) -> Iterator[Any]:
        yield from pages(store, **which)
        if next(numbers) == at_page:
            old = [row for row in store.row_ids() if Row.doc_id_of(row) == "d7"]
            store.write(updated.rows, updated.vectors)
            store.delete([*removed.row_ids, *old])

    monkeypatch.setattr(store_module, "BATCH_ROWS", 10)
    monkeypatch.setattr(ChunkStore, "_page", changing)


def test_a_large_file_of_states_is_mapped_and_means_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    sentences = [random.integers(-127, 127, (each % 40 + 1, 3), np.int8) for each in range(6000)]
    kept = StateFiles(tmp_path, "large", MAKE).keep("one", sentences, 6000)
    assert not kept.sentences[0].flags.owndata
    assert not kept.sentences[0].flags.writeable, "it is the file's page"
    assert all(map(np.array_equal, kept.sentences, sentences))
    assert kept.means == pytest.approx(states_in_memory(sentences).means, abs=1e-6)
    assert StateFiles(tmp_path, "large", MAKE).load("one", 5999) is None


async def test_lost_and_broken_state_files_are_made_anew(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(documents(2))
        before = [entry.states for entry in library._index.snapshot().entries]
    first, second = sorted((tmp_path / "states").rglob("*.states"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:100])
    async with open_library(settings(tmp_path)) as library:
        after = [entry.states for entry in library._index.snapshot().entries]
    for ours, theirs in zip(before, after, strict=True):
        assert ours is not None
        assert theirs is not None
        assert np.array_equal(ours.means, theirs.means)
        assert all(map(np.array_equal, ours.sentences, theirs.sentences))


_INGEST = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_rag_store import many, settings
from rag_store.library import open_library

async def main():
    async with open_library(settings(Path(sys.argv[1]))) as library:
        await library.ingest(many(), lambda done, _: print(done, flush=True))

asyncio.run(main())
"""


def _killed_half_way(path: Path) -> int:
    """How many documents were acknowledged when the ingest was killed."""
    command = [sys.executable, "-c", _INGEST, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        acknowledged = 0
        while acknowledged < 100:
            acknowledged = int(process.stdout.readline())
        # Into the middle of the next batch.
        time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    return acknowledged


async def test_ingest_goes_on_after_kill_9(tmp_path: Path) -> None:
    wanted = many()
    acknowledged = _killed_half_way(tmp_path)
    async with open_library(settings(tmp_path)) as library:
        assert acknowledged <= library.size.documents < len(wanted)
        kept = {doc_id: library.document(doc_id) for doc_id in library.doc_ids}
        assert kept == {each.doc_id: each for each in wanted if each.doc_id in kept}
        report = await library.ingest(wanted)
        assert (report.added, report.unchanged) == (len(wanted) - len(kept), len(kept))
        assert library.doc_ids == tuple(sorted(each.doc_id for each in wanted))
        chunks = sum(len(Chunker().cut(each.text)) for each in wanted)
        assert library.size.chunks == chunks
        assert len(rows_of(library._index.store)) == chunks


def test_a_collection_that_is_made_anew_leaves_no_states_of_before(tmp_path: Path) -> None:
    other = "shared-0123456789abcdef"
    for name in (f"{other}-0123456789abcdef", other, "shared-mine", "others-0123456789abcdef"):
        (tmp_path / "states" / name).mkdir(parents=True)
    StateFiles(tmp_path, "shared", MAKE).drop_others()
    left = {path.name for path in (tmp_path / "states").iterdir()}
    assert other not in left
    assert {f"{other}-0123456789abcdef", "shared-mine", "others-0123456789abcdef"} < left
    assert len(left) == 4


def test_a_state_file_that_another_service_writes_is_left_alone(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, "shared", MAKE)
    (folder,) = (tmp_path / "states").iterdir()
    fresh, abandoned = folder / "a.1.partial", folder / "b.2.partial"
    for path in (fresh, abandoned):
        path.touch()
    os.utime(abandoned, (0, 0))
    files.keep("kept", [np.ones((2, 3), np.int8)], 1)
    files.keep("gone", [np.ones((2, 3), np.int8)], 1)
    files.keep_only({"kept"})
    assert {path.name for path in folder.iterdir()} == {"kept.states", fresh.name}
