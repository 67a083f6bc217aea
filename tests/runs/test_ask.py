"""`kvswarm ask` against a host and a RAG service that run already."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rag_process import QUESTIONS, TEXTS, rag_process, write_corpus
from run_process import KVSWARM, HostProcess, host_process

from loadgen.cli.main import main
from rag_store.extras import install_command


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    with host_process("vllm") as running:
        yield running


@pytest.fixture(scope="module")
def rag_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    corpus = write_corpus(tmp_path_factory.mktemp("ask") / "corpus")
    with rag_process(tmp_path_factory.mktemp("library"), "--corpus", corpus) as url:
        yield url


@pytest.fixture(scope="module")
def empty_rag_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rag_process(tmp_path_factory.mktemp("empty")) as url:
        yield url


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


def command(*more: object) -> list[str]:
    return [*KVSWARM, "ask", *map(str, more)]


def ask(*more: object, stdin: str = "") -> Said:
    done = subprocess.run(
        command(*more), capture_output=True, text=True, input=stdin, timeout=60, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def running(host: HostProcess, rag_url: str, model: str = "cached") -> tuple[str, ...]:
    return ("--host", host.url, "--rag-url", rag_url, "--model", model)


def test_the_document_is_put_before_the_question(host: HostProcess, rag_url: str) -> None:
    said = ask(QUESTIONS["raft"], *running(host, rag_url), "--output-tokens", 5)
    assert (said.code, said.err) == (0, "")
    assert host.prompts()[-1] == f"{TEXTS['raft']}\n\nQuestion: {QUESTIONS['raft']}"
    assert host.bodies()[-1]["vllm_xargs"] == {"context": "raft"}
    assert "ignore_eos" not in host.bodies()[-1]
    document, _, answer, _, figures = said.out.splitlines()
    assert document.startswith("document raft (score 0.")
    assert answer == " word" * 5
    assert "100 prompt tokens (60 cached), 5 output tokens" in figures


def test_without_a_document_the_question_goes_alone(host: HostProcess, empty_rag_url: str) -> None:
    said = ask("Who knows?", *running(host, empty_rag_url))
    assert said.code == 0
    assert said.out.startswith("no document (score 0.000): asked without one\n")
    assert host.prompts()[-1] == "Question: Who knows?"
    assert "vllm_xargs" not in host.bodies()[-1]


def test_an_object_for_each_line_of_stdin(host: HostProcess, rag_url: str) -> None:
    lines = f"{QUESTIONS['paging']}\n\n{QUESTIONS['dough']}\n"
    said = ask("-", "--json", "--output-tokens", 3, *running(host, rag_url), stdin=lines)
    first, second = map(json.loads, said.out.splitlines())
    assert (first["question"], first["doc_id"]) == (QUESTIONS["paging"], "paging")
    assert (second["doc_id"], second["answer"]) == ("dough", " word" * 3)
    assert (second["prompt_tokens"], second["cached_tokens"]) == (100, 60)
    assert second["ttft_ms"] > second["retrieval_ms"] > 0
    assert (second["outcome"], second["error"]) == ("ok", "")


def test_one_bad_answer_fails_the_call_and_not_the_others(host: HostProcess, rag_url: str) -> None:
    said = ask("one", "two", "--output-tokens", 2, *running(host, rag_url, "truncating"))
    assert said.code == 1
    assert said.out.count("> ") == 2
    assert (
        said.err == "kvswarm: the answer broke off: the stream ended without a finish reason\n" * 2
    )
    said = ask("one", *running(host, rag_url, "storm"))
    assert (said.code, said.err) == (1, "kvswarm: no answer: HTTP 500: out of order\n")


def test_what_a_terminal_would_obey_is_not_printed(host: HostProcess, rag_url: str) -> None:
    said = ask("\x1b[31mone", "two", "--output-tokens", 1, *running(host, rag_url))
    assert "\x1b" not in said.out


def test_a_question_that_the_service_refuses(host: HostProcess, rag_url: str) -> None:
    said = ask("x" * 30_000, *running(host, rag_url))
    assert said.code == 1
    assert said.err.startswith(f"kvswarm: no answer: RAG service {rag_url}: HTTP 413: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "telling"),
    [
        (("--host", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("--rag-url", "http://127.0.0.1:9"), "RAG service: host http://127.0.0.1:9"),
        (("--target", "vllm"), "either --host URL or --target NAME"),
        (("--corpus", "texts"), "leave out --rag-url"),
        (("--quantum", "8"), "--quantum"),
        (("--output-tokens", "0"), "--output-tokens 0"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_use_is_one_line_and_starts_nothing(
    host: HostProcess,
    rag_url: str,
    more: tuple[str, ...],
    telling: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert telling in refused(capsys, "one", *running(host, rag_url), *more)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line by which it is refused."""
    assert main(["ask", *words]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == ""
    return line


def test_what_cannot_be_sent_is_told_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(capsys, os.fsdecode(b"Who \xff?"), "--host", "http://127.0.0.1:9")
    assert line.startswith("kvswarm: the question 'Who \\udcff?' is not UTF-8")


def test_nothing_is_no_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, " ") == "kvswarm: a question is empty: say what you want to know"
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert refused(capsys, "-") == "kvswarm: nothing to ask: give one question a line"


def test_stdin_that_is_closed_asks_nothing() -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command("-", "--host", "http://127.0.0.1:9")]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("kvswarm: stdin is closed: ")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_one_line(
    host: HostProcess, rag_url: str, more: tuple[str, ...]
) -> None:
    asked = command("one", "two", *more, "--output-tokens", 2, *running(host, rag_url))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            asked, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    said = "kvswarm: cannot write to stdout: No space left on device: send the output elsewhere\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_ctrl_c_ends_an_answer_that_has_no_end(host: HostProcess, rag_url: str) -> None:
    with subprocess.Popen(
        command("one", *running(host, rag_url, "endless")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        while b"word" not in os.read(process.stdout.fileno(), 100):
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")


def test_without_the_retriever_installed_nothing_is_started(
    host: HostProcess, tmp_path: Path
) -> None:
    script = (
        "import sys; from importlib.machinery import PathFinder as finder\n"
        "find = finder.find_spec\n"
        "finder.find_spec = lambda name, *more: None if name == 'bm25s' else find(name, *more)\n"
        "from loadgen.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    call = [sys.executable, "-c", script, "ask", "one", "--host", host.url, "--model", "cached"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    said = f"the RAG service needs bm25s: {install_command('rag')}"
    assert done.stderr == f"kvswarm: {said}\n"
