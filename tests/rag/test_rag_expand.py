"""`kvswarm rag expand` against a server that speaks OpenAI's chat protocol."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from model_host import ModelHost, model_host

from rag_store.cli.main import main
from rag_store.documents import Document
from rag_store.expansion.prompt import parts, questions_in
from rag_store.readers import read_documents

REPLY = 'Sure:\n1. What is a log?\n2) "Who leads?"\n- what is a LOG?\n\nNot a question.\nWho led?'
Answer = Callable[[str], tuple[int, Any]]


def said(text: str | None) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def chat_host(answer: Answer) -> AbstractContextManager[ModelHost]:
    return model_host("/v1/chat/completions", lambda body: answer(body["messages"][0]["content"]))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for at in range(6):
        (folder / f"d{at}.md").write_text(f"# Title {at}\nText {at}.")
    return folder


def expand(corpus: Path, host: ModelHost, *more: object) -> int:
    fixed = ["expand", "--corpus", corpus, "--url", host.url, "--model", "m"]
    return main(list(map(str, [*fixed, *more])))


def rows(path: Path) -> dict[str, list[str]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["doc_id"]: row["questions"] for row in found}


def test_each_document_gets_the_questions_of_its_reply_and_the_index_reads_them(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    with chat_host(lambda message: said(REPLY)) as host:
        more = ("--concurrency", 2, "--per-document", 2, "--key-env", "SOME_KEY")
        assert expand(corpus, host, *more) == 0
    assert rows(corpus / "expansions.jsonl") == {
        f"d{at}": ["What is a log?", "Who leads?"] for at in range(6)
    }
    assert host.most_inside == 2
    assert set(host.keys) == {"Bearer secret"}
    assert {body["model"] for body in host.bodies} == {"m"}
    asked = [body["messages"][0]["content"] for body in host.bodies]
    assert all(f"Title {at}" in text and "Write 2 questions" in text
               for at, text in enumerate(sorted(asked)))  # fmt: skip
    assert "12 questions for 6 documents" in capsys.readouterr().out
    assert read_documents(corpus)[3].questions == ("What is a log?", "Who leads?")
    assert read_documents(corpus, expansions=False)[3].questions == ()


def test_it_goes_on_where_it_was_stopped(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    written = [{"doc_id": "d1", "questions": ["By hand?"]}, {"doc_id": "gone", "questions": ["?"]}]
    out.write_text("".join(json.dumps(row) + "\n" for row in written) + '{"doc_id": "d2", "que')
    with chat_host(lambda message: said("New?")) as host:
        assert expand(corpus, host, "-o", out) == 0
        new = {f"d{at}": ["New?"] for at in (0, 2, 3, 4, 5)}
        assert rows(out) == {"d1": ["By hand?"], "gone": ["?"]} | new
        assert len(host.bodies) == 5
        (corpus / "d4.md").write_text("Another text.")
        assert expand(corpus, host, "-o", out) == 0
    assert len(host.bodies) == 6
    assert "Another text." in host.bodies[-1]["messages"][0]["content"]
    assert len(rows(out)) == 7


def test_a_line_cut_off_goes_and_a_missing_line_end_comes(corpus: Path, tmp_path: Path) -> None:
    cut, unended = tmp_path / "cut.jsonl", tmp_path / "unended.jsonl"
    cut.write_text('{"doc_id": "d2", "que')
    unended.write_text('{"doc_id": "d1", "questions": ["By hand?"]}')
    with chat_host(lambda message: said("New?")) as host:
        assert expand(corpus, host, "-o", cut) == 0
        assert expand(corpus, host, "-o", unended) == 0
    new = {f"d{at}": ["New?"] for at in range(6)}
    assert rows(cut) == new
    assert rows(unended) == new | {"d1": ["By hand?"]}


@pytest.mark.parametrize(
    "content",
    [
        "Buy bread",
        "Buy bread\n",
        '{"doc_id": "d1", "questions": ["Why?"]}\nBuy bread',
        '{"doc_id": "d1", "title": "", "text": "A document."}\n',
        '{"doc_id": "d1", "text": "A document.", "questions": ["Why?"]}\n',
        '{"qid": "1", "question": "Why?", "doc_id": "d1"}\n',
        '{"doc_id": "d1", "questions": "Why?"}\n',
        "[]",
        "\ufeff\u00e9",
    ],
)
def test_a_file_that_holds_anything_else_is_refused_as_it_is(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    out = tmp_path / "plain.txt"
    out.write_text(content)
    with chat_host(lambda message: said("New?")) as host:
        assert expand(corpus, host, "-o", out) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{out}:" in line
    assert "name another file with -o" in line
    assert out.read_text() == content
    assert not host.bodies


def test_without_an_answer_the_file_stays_as_it_is(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    before = '{"doc_id": "d1", "questions": ["Why?"], "digest": "of another text"}\n{"doc_id": "d'
    out.write_text(before)
    with chat_host(lambda message: (500, "broken")) as host:
        assert expand(corpus, host, "-o", out) == 1
    assert out.read_text() == before


def test_lines_of_other_documents_and_of_earlier_texts_stay(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with chat_host(lambda message: said("First?")) as host:
        assert expand(corpus, host, "-o", out) == 0
        first = out.read_text()
        for name in ("d0", "d1", "d2"):
            (corpus / f"{name}.md").unlink()
        (corpus / "d3.md").write_text("Another text.")
        host.answer = lambda message: said("Second?")
        assert expand(corpus, host, "-o", out) == 0
    assert out.read_text().startswith(first)
    assert len(out.read_text().splitlines()) == 7
    out.rename(corpus / "expansions.jsonl")
    assert [each.questions for each in read_documents(corpus)] == [
        ("Second?",),
        ("First?",),
        ("First?",),
    ]


def test_a_link_stays_a_link(corpus: Path, tmp_path: Path) -> None:
    link = corpus / "expansions.jsonl"
    link.symlink_to(tmp_path / "real.jsonl")
    with chat_host(lambda message: said("Why?")) as host:
        assert expand(corpus, host) == 0
    assert link.is_symlink()
    assert len(rows(tmp_path / "real.jsonl")) == 6


def test_a_second_run_is_refused_while_the_first_writes(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, seconds = tmp_path / "out.jsonl", []

    def answer(message: str) -> tuple[int, Any]:
        if not seconds:
            seconds.append(subprocess.run(second, capture_output=True, text=True, check=False))
        return said("Why?")

    with chat_host(answer) as host:
        second = [sys.executable, "-m", "rag_store", "expand", "--corpus", str(corpus), "-o",
                  str(out), "--url", host.url, "--model", "m"]  # fmt: skip
        assert expand(corpus, host, "-o", out) == 0
    assert seconds[0].returncode == 2
    (line,) = seconds[0].stderr.splitlines()
    assert f"another run writes into {out}" in line
    assert rows(out) == {f"d{at}": ["Why?"] for at in range(6)}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_what_is_no_regular_file_is_not_written(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "out")
    with chat_host(lambda message: said("Why?")) as host:
        assert expand(corpus, host, "-o", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is no regular file" in line
    assert not host.bodies


def test_a_document_without_a_usable_question_is_named_and_asked_for_again(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_host(lambda message: said(None if "Text 3" in message else "Why?")) as host:
        assert expand(corpus, host) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "1 documents (d3)" in line
        host.answer = lambda message: said("Why not?")
        assert expand(corpus, host) == 0
    assert len(host.bodies) == 7
    assert rows(corpus / "expansions.jsonl")["d3"] == ["Why not?"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((404, {"error": {"message": "The model `m` does not exist."}}), "404: The model `m` does"),
        ((400, {"object": "error", "message": "too long"}), "400: too long"),
        ((500, "<html>\nbroken"), "500: <html> broken"),
        ((200, {"choices": []}), "no chat completion"),
        ((200, "no JSON"), "no chat completion"),
    ],
)
def test_a_server_that_refuses_is_one_line(
    corpus: Path, capsys: pytest.CaptureFixture[str], answer: tuple[int, Any], told: str
) -> None:
    with chat_host(lambda message: answer) as host:
        assert expand(corpus, host) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert host.url in line


def test_a_busy_server_is_asked_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_store.expansion.writer._WAIT_S", 0.01)
    replies = iter([(429, {}), (503, "")])
    with chat_host(lambda message: next(replies, said("Why?"))) as host:
        assert expand(corpus, host) == 0
    assert len(host.bodies) == 8


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--url", "localhost:1"), "give http://host:port"),
        (("--url", "http://127.0.0.1:9"), "cannot reach http://127.0.0.1:9/v1/chat/completions"),
        (("-o", "/no/such/folder/x.jsonl"), "-o"),
        (("-o", "x" * 5000), "File name too long"),
        (("--per-document", "0"), "--per-document"),
    ],
)
def test_wrong_use_is_one_line(
    corpus: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], told: str
) -> None:
    fixed = ["expand", "--corpus", str(corpus), "--url", "http://127.0.0.1:9", "--model", "m"]
    assert main([*fixed, *change]) > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.parametrize("url", ["http://", "http://h:99999", "http://me:secret@127.0.0.1:9"])
def test_a_url_that_is_none_is_told_before_anything_is_written(
    corpus: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert main(["expand", "--corpus", str(corpus), "--url", url, "--model", "m"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--url " in line
    assert "secret" not in line
    assert not (corpus / "expansions.jsonl").exists()


def test_the_corpus_is_not_written_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"doc_id": "a", "title": "A", "text": "Bread rises."}\n')
    before = corpus.read_text()
    fixed = ["expand", "--corpus", str(corpus), "--url", "http://127.0.0.1:9", "--model", "m"]
    assert main([*fixed, "-o", str(corpus)]) == 2
    assert "is the corpus itself" in capsys.readouterr().err
    assert corpus.read_text() == before


def test_thoughts_numbers_and_endless_lines_are_no_questions() -> None:
    reply = f"<think>Why?\n</think>\n**1. Who?**\n?\nWhat {'x' * 400}?\nQ: 何\uff1f\n<think>What"
    assert questions_in(reply) == ("Who?", "何\uff1f")


def test_a_question_may_begin_with_a_decimal() -> None:
    reply = "3.5 GB is how much?\n2. 1.5 l are how many?\n3.Why?\n12:30 is when?"
    wanted = ("3.5 GB is how much?", "1.5 l are how many?", "Why?", "12:30 is when?")
    assert questions_in(reply) == wanted


def test_a_long_document_is_asked_about_in_parts_that_share_the_questions() -> None:
    text = " ".join(f"word{at}" for at in range(3000))
    found = parts(Document("a", "A", text), 7)
    assert len(found) > 1
    assert sum(part.count for part in found) == 7
    assert "".join(part.text for part in found) == text
    assert [part.count for part in parts(Document("a", "A", "Short."), 7)] == [7]
    assert sum(part.count for part in parts(Document("a", "A", text), 1)) == 1
