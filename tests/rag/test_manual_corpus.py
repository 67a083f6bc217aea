"""The manual corpus: sections cut from pages, and the questions written about them."""

import hashlib
import importlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from rag_store.readers import read_queries

FOLDER = Path(__file__).parent / "manual"

PAGE = """<html><head><title>20.5. Write Ahead Log</title></head><body>
<div class="navheader"><table><tr>
<th width="60%">Chapter 20. Server <i>Set-up</i></th></tr></table></div>
<div class="sect1" id="WAL"><div class="titlepage"><h2>20.5. Write Ahead Log</h2></div>
<div class="toc"><dl><dt>20.5.1. Settings</dt></dl></div>
<p>The log
   is <em>replayed</em>.</p>
<div class="sect2" id="SETTINGS"><div class="titlepage"><h3>20.5.1. Settings</h3></div>
<table><tr><th>Name</th><th>Use</th></tr><tr><td>fsync</td><td>safety &amp; order</td></tr></table>
<div class="note"><p>Mind it.</p></div></div>
<p>The end.</p></div><div class="navfooter">Next</div></body></html>"""


@pytest.fixture
def assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """assemble.py, made to want the two sections of PAGE."""
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("assemble")
    (tmp_path / "sections.txt").write_text("wal.html#settings\nwal.html#wal\n")
    monkeypatch.setattr(module, "SECTIONS", tmp_path / "sections.txt")
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An unpacked package with the pages some folders down."""
    pages = tmp_path / "package" / "usr" / "html"
    pages.mkdir(parents=True)
    (pages / "index.html").write_text("<title>PostgreSQL 15.99 Documentation</title>")
    (pages / "wal.html").write_text(PAGE)
    return tmp_path / "package"


def json_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sections_are_cut_without_headers_contents_and_numbers(
    assembler: ModuleType, package: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assembler.main([str(package), str(out)])
    inner = "Name Use\nfsync safety & order\nMind it."
    assert json_lines(out) == [
        {
            "doc_id": "settings",
            "title": "Server Set-up: Write Ahead Log: Settings",
            "text": inner,
        },
        {
            "doc_id": "wal",
            "title": "Server Set-up: Write Ahead Log",
            "text": f"The log is replayed.\n20.5.1. Settings\n{inner}\nThe end.",
        },
    ]


def test_another_text_is_told_in_one_line_and_the_exit_code(
    assembler: ModuleType, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert assembler.main([str(package), str(tmp_path / "out.jsonl")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "15.99" in line
    assert "not the text" in line


def test_another_version_with_the_same_text_is_only_mentioned(
    assembler: ModuleType,
    package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out.jsonl"
    assembler.main([str(package), str(out)])
    capsys.readouterr()
    monkeypatch.setattr(assembler, "SHA256", hashlib.sha256(out.read_bytes()).hexdigest())
    assert assembler.main([str(package), str(out)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "15.99 instead of 15.20" in line


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("no pages", "unpack postgresql-doc-15"), ("no section", "has no section settings")],
)
def test_what_cannot_be_assembled_is_one_line(
    assembler: ModuleType,
    package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trouble: str,
    said: str,
) -> None:
    page = package / "usr" / "html" / "wal.html"
    if trouble == "no pages":
        page.unlink()
    else:
        page.write_text(PAGE.replace("SETTINGS", "OTHER"))
    assert assembler.main([str(package), str(tmp_path / "out.jsonl")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out.jsonl").exists()


def test_every_section_has_questions_of_the_stated_kinds() -> None:
    sections = [line.partition("#")[2] for line in (FOLDER / "sections.txt").read_text().split()]
    rows = json_lines(FOLDER / "questions.jsonl")
    gold = [doc for row in rows for doc in golds(row)]
    assert len(set(sections)) == len(sections) == 64
    assert set(gold) == set(sections)
    assert len({row["qid"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)
    assert Counter((row["kind"], row["split"]) for row in rows) == {
        (kind, split): number
        for kind, number in (("direct", 64), ("paraphrased", 32), ("deep", 16), ("neighbour", 16))
        for split in ("dev", "test")
    }


def golds(row: dict[str, object]) -> list[str]:
    """The documents that answer a question."""
    docs = row["doc_id"]
    return docs if isinstance(docs, list) else [str(docs)]


def test_unanswerable_questions_have_no_document() -> None:
    rows = json_lines(FOLDER / "near-unanswerable.jsonl")
    assert len({row["question"] for row in rows}) == len({row["qid"] for row in rows}) == 40
    assert {row["doc_id"] for row in rows} == {None}
    assert Counter(row["split"] for row in rows) == {"dev": 20, "test": 20}


@pytest.mark.parametrize(("name", "number"), [("questions", 128), ("near-unanswerable", 20)])
def test_the_evaluation_reads_one_split(name: str, number: int) -> None:
    assert len(read_queries(FOLDER / f"{name}.jsonl", "test")) == number
