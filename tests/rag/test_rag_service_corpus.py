"""`kvswarm rag serve --corpus`: indexed first, then served."""

import subprocess
from pathlib import Path

import pytest
from embedding_host import embedding_host
from service_process import RAG, rag, service, wait_until

from rag_store.cli.main import main


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_it_holds_the_corpus_and_with_prune_nothing_else(tmp_path: Path) -> None:
    library = tmp_path / "library"
    first = write(tmp_path / "first", raft="A leader has a log.", dough="Bread rises.")
    with service(library, "--corpus", first) as running:
        assert running.get("/ready").body["documents"] == 2
    second = write(tmp_path / "second", raft="A leader has a long log.", clock="It swings.")
    with service(library, "--corpus", second, "--prune") as running:
        held = running.get("/v1/documents").body["data"]
        assert [document["doc_id"] for document in held] == ["clock", "raft"]
        assert running.get("/v1/documents/raft").body["text"] == "A leader has a long log."


def test_a_library_of_another_make_is_made_anew_only_when_told(tmp_path: Path) -> None:
    library = tmp_path / "library"
    corpus = write(tmp_path / "corpus", raft="A leader has a log.")
    assert rag("index", corpus, "--path", library, "--embedder", "hashing").returncode == 0
    other = ("--embedder", "hashing", "--embedder-dim", 64)
    refused = rag("serve", "--port", 0, "--path", library, *other, "--corpus", corpus)
    assert refused.returncode == 2
    assert "dim 256, not 64" in refused.stderr
    with service(library, *other, "--corpus", corpus, "--renew") as running:
        assert running.get("/ready").body["documents"] == 1


def test_options_without_a_corpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--prune", "--renew"):
        assert main(["serve", option]) == 2
        assert "--corpus" in capsys.readouterr().err


def test_a_signal_ends_it_in_the_middle_of_indexing(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus", raft="A leader has a log.")
    with embedding_host() as host:
        # The first call is for the dimension.
        host.hold_after(1)
        command = [*RAG, "serve", "--port", 0, "--path", tmp_path / "library", *host.options]
        more = ["--corpus", corpus, "--drain", "0.2"]
        process = subprocess.Popen(list(map(str, [*command, *more])), stdout=subprocess.PIPE)
        wait_until(lambda: host.waiting == 1)
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert said == b"", "it never served"
