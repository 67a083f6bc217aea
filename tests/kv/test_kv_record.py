"""The engine that is recorded: the catalog's, with a tier of files behind LMCache."""

import json
from pathlib import Path

import pytest

from kv_reading import KvError
from kv_reading.recording import (
    KV_JSON,
    Design,
    KvRequest,
    RunFacts,
    cut_sources,
    read_library,
    read_requests,
    write_requests,
)
from loadgen.cli.made_by import told
from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.launch.kv_record import (
    _write_library,
    chunk_tokens_of,
    empty_tier,
    with_fs_tier,
)
from loadgen.runs.lock import locked
from loadgen.targets.catalog import load_catalog


@pytest.mark.parametrize("name", ["vllm-lmcache", "vllm-lmcache-context"])
def test_lmcache_writes_files_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    spec = load_catalog()[name]
    changed = with_fs_tier(spec, tmp_path)
    for before, after in zip(spec.services, changed.services, strict=True):
        if before.name != "lmcache":
            assert after == before
            continue
        assert after.argv[: len(before.argv)] == before.argv
        flag, adapter = after.argv[len(before.argv) :]
        assert flag == "--l2-adapter"
        assert json.loads(adapter) == {"type": "fs", "base_path": str(tmp_path)}
    assert changed.extra == spec.extra


def test_a_recording_is_read_with_whatever_characters_it_holds(tmp_path: Path) -> None:
    odd = "One\u2028two\u2029three\x85four\x0bfive"
    asked = [
        KvRequest("own", "q1", "a", "a", 3, (1, 2), odd),
        KvRequest("own", "q2", "a", "a", 3, (), "b"),
    ]
    write_requests(tmp_path, asked)
    assert read_requests(tmp_path) == asked
    _write_library(tmp_path, [{"doc_id": "a", "title": odd, "text": odd, "whole": odd}])
    assert [each.whole for each in read_library(tmp_path)] == [odd]


def test_chunks_of_a_recording_that_did_not_end_are_none_of_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "chunks"
    empty_tier(folder)
    chunk, another = folder / f"toy@0x01000100@0@{'ab' * 32}.data", folder / "notes.txt"
    chunk.write_bytes(b"of another model of this name")
    another.write_text("somebody's")
    empty_tier(folder)
    assert [*folder.iterdir()] == [another]


def test_a_target_without_lmcache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stores no KV outside the engine"):
        with_fs_tier(load_catalog()["vllm"], tmp_path)


def test_chunks_are_as_the_catalog_says(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_catalog()["vllm-lmcache"]
    for platform, tokens in (("cpu", 128), ("gpu", 256)):
        monkeypatch.setattr("loadgen.launch.kv_record.detect_platform", lambda p=platform: p)
        assert chunk_tokens_of(spec) == tokens


def test_a_page_names_its_command_without_places_of_this_machine() -> None:
    words = ["--quick", "--out=/home/me/runs/a", "-o", "docs", "--model", "/m/toy", "--l1-gb=2"]
    assert told(words) == ["--quick", "--out", "a", "--model", "toy", "--l1-gb=2"]


def test_a_recording_of_another_model_is_not_studied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "out" / "recording"
    recording.mkdir(parents=True)
    facts = RunFacts(str(tmp_path / "served"), True, 128, 0)
    (recording / KV_JSON).write_text(json.dumps(facts.as_json()))
    words = ["study", "task4", "--out", str(tmp_path / "out"), "--model", str(tmp_path / "asked")]
    assert main(words) == 2
    assert "give another --out" in capsys.readouterr().err


@pytest.mark.parametrize("other", [["--corpus", "b"], [], ["--corpus", "a", "--quick"]])
def test_a_recording_of_another_corpus_is_not_studied(
    other: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {"study": "task4", "arguments": ["--corpus", "a", "--reference"]}
    (tmp_path / "study.json").write_text(json.dumps(kept))
    assert main(["study", "task4", "--out", str(tmp_path), *other]) == 2
    assert "is of `kvswarm study task4 --corpus a" in capsys.readouterr().err


def test_fewer_documents_than_questions_are_refused() -> None:
    with pytest.raises(KvError, match="4 documents with 4 questions of each: more documents"):
        cut_sources([], Design(128, documents=4))


def test_wrong_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["kv", "extract", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "holds no complete recording" in told
    assert main(["kv", "record", "--target", "vllm", "--out", str(tmp_path / "new")]) == 2
    assert "stores no KV outside the engine" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_two_recordings_do_not_share_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadgen.launch.kv_record._prompts", lambda *_: ([], []))
    words = ["kv", "record", "--target", "vllm-lmcache", "--model", str(tmp_path)]
    (tmp_path / "config.json").write_text("{}")
    with locked(tmp_path / "out", "recording"):
        assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "another recording works in" in capsys.readouterr().err
    assert not (tmp_path / "out" / "requests.jsonl").exists()
