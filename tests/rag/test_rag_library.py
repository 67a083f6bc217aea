"""Labels from a library, and the queue that its queries share."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_process import wait_until

from rag_store.document_index import Writer
from rag_store.documents import Document, Query
from rag_store.embedders import EmbedderSpec, HashingEmbedder
from rag_store.embedders.protocol import Embedding
from rag_store.embedders.queue import EmbeddingQueue
from rag_store.errors import (
    EmbedderError,
    EmbedderRefusal,
    QueryError,
    RagError,
    RagUsageError,
    StoreError,
)
from rag_store.evaluation import evaluate
from rag_store.label import Label, Threshold
from rag_store.library import open_library
from rag_store.ranking import Snapshot
from rag_store.settings import Settings
from rag_store.store import Entry

DOCUMENTS = [
    Document("bees", "Bees", "Bees dance on the comb to tell where flowers are found."),
    Document("tides", "Tides", "The moon pulls the water of the oceans, so tides rise."),
    Document("bread", "Bread", "Sourdough rises slowly and its levain is fed with flour."),
]


def settings(path: Path) -> Settings:
    return Settings(path=path, embedder=EmbedderSpec("hashing"))


async def test_a_query_gets_its_document(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        label = await library.label("Where do bees dance?")
        assert label.doc_id == "bees"
        assert label.candidates[0].doc_id == "bees"
        assert label.margin > 0
        assert label.agree
        answer = await library.explain("Where do bees dance?")
        assert answer.chunk_text == DOCUMENTS[0].text
        assert {word for word, weight in answer.terms.items() if weight > 0} == {"bee", "danc"}


async def test_documents_are_found_and_lost_at_once(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        assert (await library.label("levain flour")).doc_id is None
        await library.ingest(DOCUMENTS)
        assert (await library.label("levain flour")).doc_id == "bread"
        await library.put(replace(DOCUMENTS[1], text="Levain and flour, levain and flour."))
        await library.remove("bread")
        assert (await library.label("levain flour")).doc_id == "tides"


async def test_documents_without_a_term_are_found_by_their_vectors(tmp_path: Path) -> None:
    silent = [Document("x", "", "What is it?"), Document("y", "", "They were not there.")]
    async with open_library(settings(tmp_path)) as library:
        await library.ingest([*silent, DOCUMENTS[0]])
        assert (await library.label("bees dance")).doc_id == "bees"
        await library.remove("bees")
        for query, wanted in (("What is it?", "x"), ("They were not there.", "y")):
            answer = await library.explain(query)
            assert answer.label.doc_id == wanted
            assert answer.label.candidates[0].bm25 == 0
        assert (await library.explain("bees dance")).terms == {"bee": 0, "danc": 0}
    async with open_library(replace(settings(tmp_path), retriever="bm25")) as library:
        assert (await library.label("bees dance")).candidates == ()


class HeldIndexing:
    """In place of `Snapshot.of`: tells that something is indexed, and holds it."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._index = Snapshot.of

    def __call__(self, entries: list[Entry], dim: int) -> Snapshot:
        found = self._index(entries, dim)
        self.begun.set()
        self.may_end.wait(30)
        return found


async def test_labels_do_not_wait_for_a_change_to_be_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldIndexing()
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        monkeypatch.setattr(Snapshot, "of", held)
        removing = asyncio.create_task(library.remove("bread"))
        await asyncio.to_thread(held.begun.wait, 30)
        assert (await library.label("levain flour")).doc_id == "bread"
        assert not removing.done()
        held.may_end.set()
        await removing
        assert (await library.label("levain flour")).doc_id != "bread"


async def test_an_index_that_was_overtaken_by_a_change_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
    held = HeldIndexing()
    monkeypatch.setattr(Snapshot, "of", held)
    async with open_library(settings(tmp_path)) as library:
        early = asyncio.create_task(library.label("levain flour"))
        await asyncio.to_thread(held.begun.wait, 30)
        removing = asyncio.create_task(library.remove("bread"))
        await asyncio.to_thread(wait_until, lambda: "bread" not in library.doc_ids)
        held.may_end.set()
        assert (await early).doc_id == "bread"
        await removing
        assert (await library.label("levain flour")).doc_id != "bread"


async def test_a_change_that_is_given_up_and_repeated_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(DOCUMENTS[1], text="Levain and flour, levain and flour.")
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        begun, may_go_on = threading.Event(), threading.Event()
        write = Writer.write

        def held(writer: Writer, *given: Any) -> Iterator[Entry]:
            begun.set()
            may_go_on.wait(30)
            return write(writer, *given)

        monkeypatch.setattr(Writer, "write", held)
        first = asyncio.create_task(library.put(changed))
        await asyncio.to_thread(begun.wait, 30)
        first.cancel()
        again = asyncio.create_task(library.put(changed))
        await asyncio.sleep(0.05)
        may_go_on.set()
        await again
    async with open_library(settings(tmp_path)) as library:
        assert library.doc_ids == ("bees", "bread", "tides")
        assert library.document("tides") == changed


async def test_a_change_begins_while_one_that_was_given_up_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS[:2])
        entries, digest = library._index.entries, Entry.digest.fget  # type: ignore[attr-defined]

        def growing(entry: Entry) -> str:
            entries.setdefault("other", entry)
            return str(digest(entry))

        monkeypatch.setattr(Entry, "digest", property(growing))
        assert await library.put(DOCUMENTS[0]) == "unchanged"


async def test_what_was_stored_before_an_ingest_failed_is_found(tmp_path: Path) -> None:
    def progress(done: int, count: int) -> None:
        if done == 1:
            raise RagError("interrupted")

    async with open_library(settings(tmp_path)) as library:
        assert (await library.label("bees dance")).doc_id is None
        with pytest.raises(RagError, match="interrupted"):
            await library.ingest(DOCUMENTS, progress)
        assert (await library.label("bees dance")).doc_id == "bees"
        assert [each.doc_id for each in (await library.label("moon")).candidates] == ["bees"]


async def test_a_query_is_embedded_between_the_chunks_of_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = FirstHeldEmbedder()
    monkeypatch.setattr("rag_store.library.open_embedder", lambda _: embedder)
    long = Document("long", "", " ".join(f"word{at}" for at in range(10_000)))
    async with open_library(settings(tmp_path)) as library:
        changing = asyncio.create_task(library.put(long))
        await asyncio.to_thread(embedder.begun.wait, 30)
        asking = asyncio.create_task(library.embed(["a query"]))
        for _ in range(10):  # until it is in the embedder's line
            await asyncio.sleep(0)
        embedder.may_go_on.set()
        await asyncio.gather(changing, asking)
    assert ["a query"] in embedder.batches[1:3]
    assert len(embedder.batches) > 4


async def test_who_asks_when_threads_are_closed_does_not_wait_for_ever() -> None:
    pool = ThreadPoolExecutor(1)
    queue = EmbeddingQueue(HashingEmbedder(8), pool)
    pool.shutdown()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(queue.embed("a"), 10)
    await queue.close()


class FirstHeldEmbedder(HashingEmbedder):
    """Holds its first call, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(8)
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.batches: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        self.batches.append(list(texts))
        self.begun.set()
        self.may_go_on.wait(30)
        return super().embed(texts)


async def test_repeated_questions_are_embedded_anew_where_none_are_kept(tmp_path: Path) -> None:
    async with open_library(replace(settings(tmp_path), kept_queries=0)) as library:
        await library.ingest(DOCUMENTS)
        labels = [await library.label("Where do bees dance?") for _ in range(2)]
        assert all(label.timings.embed_ms > 0 for label in labels)


async def test_hnsw_above_the_exact_limit_gives_the_same_labels(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        exact = await library.label("moon and water")
    async with open_library(replace(settings(tmp_path), exact_chunks=0)) as library:
        asked = await library.label("moon and water")
    assert asked.doc_id == exact.doc_id == "tides"
    assert asked.candidates[0].score == pytest.approx(exact.candidates[0].score, abs=1e-4)


async def test_words_that_no_document_has_agree_with_nothing(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        assert (await library.label("the moon pulls the water")).agree
        found = await library.label("moonlight watery tidal")
        assert found.candidates[0].bm25 == 0
        assert not found.agree


def changes_of(folder: Path) -> dict[Path, int]:
    """When each file was changed last."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


async def test_a_library_that_can_only_be_read_is_labelled_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
    before = changes_of(tmp_path)
    monkeypatch.setattr("rag_store.chroma.os.access", lambda path, mode: False)
    asking = replace(settings(tmp_path), create=False)
    async with open_library(asking) as library, open_library(asking) as other:
        assert (await library.label("levain flour")).doc_id == "bread"
        assert (await other.label("levain flour")).doc_id == "bread"
        for change in (library.put(DOCUMENTS[0]), library.remove("bread")):
            with pytest.raises(RagUsageError, match="can only be read: copy it"):
                await change
        with pytest.raises(RagUsageError, match="can only be read: copy it"):
            await library.fit_threshold([Query("q", "levain", ("bread",))], [])
    assert changes_of(tmp_path) == before


async def test_a_query_that_says_nothing_is_refused_whatever_the_threshold(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        assert library.threshold.threshold == 0
        for text in ("?", "1789", "the"):
            found = await library.label(text)
            assert (found.doc_id, found.score) == (None, 0), text
        assert (await library.label("The levain?")).doc_id == "bread"


async def test_queries_that_cannot_be_labelled(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        for text in ("", " \n\t", "\x00", "\ud800", "x" * 20_001, 3, None):
            with pytest.raises(QueryError):
                await library.label(text)  # type: ignore[arg-type]


async def test_one_bad_query_does_not_fail_the_others(tmp_path: Path) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        first, second, third = await library.label_many(["bees", "", "a\x00moon\ud800"])
        assert isinstance(first, Label)
        assert isinstance(second, QueryError)
        assert isinstance(third, Label)
        assert (first.doc_id, third.doc_id) == ("bees", "tides")


async def test_a_fitted_threshold_refuses_and_stays(tmp_path: Path) -> None:
    yes = [Query(str(at), each.text) for at, each in enumerate(DOCUMENTS)]
    stranger = "Which opera did the barber sing?"
    async with open_library(settings(tmp_path)) as library:
        with pytest.raises(RagUsageError):
            await library.fit_threshold(yes, [])
        await library.ingest(DOCUMENTS)
        assert (await library.label(stranger)).doc_id is not None
        fitted = await library.fit_threshold(yes, [Query("n", stranger)])
        refused = await library.label(stranger)
        assert refused.doc_id is None
        assert refused.score < refused.threshold
        assert refused.candidates
        assert (await library.label(yes[0].text)).doc_id == "bees"
    async with open_library(settings(tmp_path)) as library:
        assert library.threshold == fitted


@pytest.mark.parametrize("kept", ["no JSON", "[]", '{"threshold": "high", "fitted_on": [1, 2]}'])
async def test_a_threshold_that_cannot_be_read_is_fitted_again(tmp_path: Path, kept: str) -> None:
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        library._index.store.set_note("threshold", kept)
    with pytest.raises(StoreError, match="cannot be read: fit it again with kvswarm rag fit-thre"):
        async with open_library(settings(tmp_path)):
            pass
    async with open_library(settings(tmp_path), refit=True) as library:
        fitted = await library.fit_threshold([Query("1", DOCUMENTS[0].text)], [])
    async with open_library(settings(tmp_path)) as library:
        assert library.threshold == fitted


async def test_a_threshold_is_of_the_scores_it_was_fitted_to(tmp_path: Path) -> None:
    queries = [Query(str(at), each.text) for at, each in enumerate(DOCUMENTS)]
    words = replace(settings(tmp_path), retriever="bm25")
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        both = await library.fit_threshold(queries, [])
    async with open_library(words) as library:
        assert library.threshold == Threshold(0.0), "nothing is known of words alone"
        alone = await library.fit_threshold(queries, [])
    for chosen, kept in ((settings(tmp_path), both), (words, alone)):
        async with open_library(chosen) as library:
            assert library.threshold == kept


async def test_evaluation_labels_all_queries(tmp_path: Path) -> None:
    queries = [Query("1", "bees dance", ("bees",)), Query("2", "the moon", ("bees", "tides"))]
    async with open_library(settings(tmp_path)) as library:
        await library.ingest(DOCUMENTS)
        evaluation = await evaluate(library, queries, [Query("3", "opera")])
    assert evaluation.top(1).value == 1
    assert len(evaluation.unanswerable) == 1


class SlowEmbedder(HashingEmbedder):
    """Takes its time, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(8)
        self.batches: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        self.batches.append(list(texts))
        time.sleep(0.05)
        if "nan" in texts:
            return [Embedding(np.full(8, np.nan, np.float32)) for _ in texts]
        return super().embed(texts)


async def test_queries_that_arrive_together_share_a_pass() -> None:
    embedder = SlowEmbedder()
    with ThreadPoolExecutor(1) as pool:
        queue = EmbeddingQueue(embedder, pool, batch_rows=4)
        found = await asyncio.gather(*map(queue.embed, ["a", "b", "a", "c", "d", "e"]))
        assert embedder.batches == [["a", "b", "c", "d"], ["e"]]
        assert np.array_equal(found[0].embedding.vector, found[2].embedding.vector)
        assert (await queue.embed("c")).embed_ms == 0
        assert len(embedder.batches) == 2
        await queue.close()


async def test_a_text_that_is_asked_again_while_it_is_embedded_shares_the_pass() -> None:
    embedder = FirstHeldEmbedder()
    with ThreadPoolExecutor(1) as pool:
        queue = EmbeddingQueue(embedder, pool)
        first = asyncio.create_task(queue.embed("a"))
        await asyncio.to_thread(embedder.begun.wait, 30)
        second = asyncio.create_task(queue.embed("a"))
        await asyncio.sleep(0)
        embedder.may_go_on.set()
        await asyncio.gather(first, second)
        await queue.close()
    assert embedder.batches == [["a"]]


async def test_the_loop_goes_on_while_texts_are_embedded() -> None:
    with ThreadPoolExecutor(1) as pool:
        queue = EmbeddingQueue(SlowEmbedder(), pool)
        task = asyncio.create_task(queue.embed("a"))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.002)
            turns += 1
        await queue.close()
    assert turns >= 3


async def test_a_caller_that_gives_up_leaves_the_others_their_vector() -> None:
    with ThreadPoolExecutor(1) as pool:
        queue = EmbeddingQueue(SlowEmbedder(), pool)
        first, second = asyncio.create_task(queue.embed("a")), asyncio.create_task(queue.embed("a"))
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await second).embedding.vector.shape == (8,)
        await queue.close()


async def test_vectors_that_are_not_finite_are_an_error_and_not_kept() -> None:
    embedder = SlowEmbedder()
    with ThreadPoolExecutor(1) as pool:
        queue = EmbeddingQueue(embedder, pool)
        for _ in range(2):
            with pytest.raises(EmbedderError, match="finite"):
                await queue.embed("nan")
        assert (await queue.embed("fine")).embedding.vector.shape == (8,)
        await queue.close()
    assert len(embedder.batches) == 3


async def test_a_queue_that_is_closed_leaves_nobody_waiting() -> None:
    embedder = HeldEmbedder()
    with ThreadPoolExecutor(1) as pool:
        queue = EmbeddingQueue(embedder, pool)
        tasks = [asyncio.create_task(queue.embed(text)) for text in ("odd", "a", "b")]
        await asyncio.to_thread(embedder.alone.wait, 30)
        closing = asyncio.create_task(queue.close())
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        embedder.may_end.set()
        await closing
    assert all(isinstance(each, asyncio.CancelledError) for each in found)


class HeldEmbedder(HashingEmbedder):
    """Refuses texts together, and holds the first that is asked alone."""

    def __init__(self) -> None:
        super().__init__(8)
        self.alone, self.may_end = threading.Event(), threading.Event()

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        if len(texts) > 1:
            raise EmbedderRefusal("too many")
        self.alone.set()
        self.may_end.wait(30)
        return super().embed(texts)
