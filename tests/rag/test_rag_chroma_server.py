"""The commands and the service with the chunks in a Chroma server of their own."""

import json
from pathlib import Path

import pytest
from service_process import chroma_server, free_port, rag, service

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
    port, data = free_port(), tmp_path / "chroma"
    server = ("--chroma-url", f"http://127.0.0.1:{port}", "--embedder", "hashing")
    with chroma_server(data, port):
        for _ in range(2):
            early = rag("label", QUESTION, "--path", tmp_path / "none", *server)
            assert (early.returncode, early.stdout, early.stderr.count("\n")) == (2, "", 1)
            assert f"no collection 'default' in {server[1]}" in early.stderr
        assert not (tmp_path / "none").exists()
        indexed = rag("index", corpus, "--path", tmp_path / "one", *server)
        assert indexed.stdout.startswith("2 added"), indexed.stderr
        # Another folder: what lies there besides Chroma is made anew.
        options = ("--path", tmp_path / "two", *server)
        assert rag("label", QUESTION, *options).stdout.startswith("raft\t")
        measured = rag("eval", "--questions", corpus, "--json", *options)
        assert json.loads(measured.stdout)["top1"] == 1, measured.stderr
    with chroma_server(data, port), service(tmp_path / "two", *server) as running:
        found = running.post("/v1/retrieve", {"query": QUESTION}).body
        assert found["document"]["text"] == TEXTS["raft"]
    gone = rag("label", QUESTION, *options)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith("kvswarm rag: cannot open Chroma: ")
    assert gone.stderr.count("\n") == 1
