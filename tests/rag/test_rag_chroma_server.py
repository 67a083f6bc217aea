"""The commands and the service with the chunks in a Chroma server of their own."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from service_process import Later, chroma_server, rag, rag_here, service

from loadgen.targets.hardware import free_ports
from rag_store.documents import Document
from rag_store.embedders import EmbedderSpec
from rag_store.library import Library, open_library
from rag_store.settings import Settings
from rag_store.store import ABANDONED_NS, Row

TEXTS = {
    "paging": "The cache is cut into blocks, which a table maps to pages.",
    "raft": "A leader replicates its log to the followers.",
}
QUESTION = "To whom does the leader replicate its log?"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    row = {"qid": "1", "question": QUESTION, "doc_id": "raft"}
    (folder / "questions.jsonl").write_text(json.dumps(row))
    return folder


def test_what_one_process_indexed_others_ask(corpus: Path, tmp_path: Path) -> None:
    (port,), data = free_ports(1), tmp_path / "chroma"
    server = ("--chroma-url", f"http://127.0.0.1:{port}", "--embedder", "hashing")
    with chroma_server(data, port):
        for _ in range(2):
            early = rag_here("label", QUESTION, "--path", tmp_path / "none", *server)
            assert (early.returncode, early.stdout, early.stderr.count("\n")) == (2, "", 1)
            assert f"no collection 'default' in {server[1]}" in early.stderr
        assert not (tmp_path / "none").exists()
        indexed = rag("index", corpus, "--path", tmp_path / "one", *server)
        assert indexed.stdout.startswith("2 added"), indexed.stderr
        # Another folder: what lies there besides Chroma is made anew.
        options = ("--path", tmp_path / "two", *server)
        assert rag("label", QUESTION, *options).stdout.startswith("raft\t")
        measured = rag_here("eval", "--questions", corpus, "--json", *options)
        assert json.loads(measured.stdout)["top1"] == 1, measured.stderr
    with chroma_server(data, port), service(tmp_path / "two", *server) as running:
        found = running.post("/v1/retrieve", {"query": QUESTION}).body
        assert found["document"]["text"] == TEXTS["raft"]
    gone = rag_here("label", QUESTION, *options)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith("kvswarm rag: cannot open Chroma: ")
    assert gone.stderr.count("\n") == 1


def test_labels_go_on_while_a_server_hangs(corpus: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = ("--chroma-url", f"http://127.0.0.1:{port}", "--corpus", corpus, "--threads", 2)
    with (
        chroma_server(tmp_path / "chroma", port) as chroma,
        service(tmp_path / "rag", *options) as running,
    ):
        assert running.get("/ready").status == 200
        chroma.send_signal(signal.SIGSTOP)
        asked = [Later(lambda: running.get("/ready")) for _ in range(6)]
        assert running.post("/v1/label", {"query": QUESTION}).body["candidates"]
        assert {each.reply().status for each in asked} == {503}
        assert running.post("/v1/label", {"query": "blocks?"}).body["candidates"]


async def test_what_others_may_be_writing_is_left_alone(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = Settings(
        path=tmp_path, embedder=EmbedderSpec("hashing"), chroma_url=f"http://127.0.0.1:{port}"
    )
    whole = Document("raft", "Raft", TEXTS["raft"])
    with chroma_server(tmp_path / "chroma", port):
        async with open_library(settings) as library:
            await library.put(whole)
            entry = library._index.entries["raft"]
            # What a kill -9 left long ago, and what somebody has begun to write just now.
            for doc_id, age_ns in (("old", 2 * ABANDONED_NS), ("young", 0)):
                part = replace(entry.rows[0], doc_id=doc_id, count=2)
                part = replace(part, written_ns=part.written_ns - age_ns)
                library._index.store.write([part], entry.vectors[:1])
        async with open_library(settings) as library:
            assert library.doc_ids == ("raft",)
            assert _held(library) == {"raft", "old", "young"}, "opening only reads"
            assert await library.put(whole) == "unchanged"
            assert _held(library) == {"raft", "young"}


def _held(library: Library) -> set[str]:
    return {Row.doc_id_of(row_id) for row_id in library._index.store.row_ids()}
