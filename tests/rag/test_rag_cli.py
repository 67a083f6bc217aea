"""The commands of `kvswarm rag`."""

import errno
import json
import re
import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from service_process import rag_here as rag

from rag_store.cli.main import HELP, main
from rag_store.cli.output import Output
from rag_store.documents import Chunker
from rag_store.embedders import HashingEmbedder
from rag_store.errors import RagError
from rag_store.extras import install_command
from rag_store.settings import Fingerprint, Settings
from rag_store.store import ChunkStore

TEXTS = {
    "paging": "The cache is cut into blocks, which a table maps to pages.",
    "raft": "A leader replicates its log to the followers.",
    "dough": "Bread rises when yeast ferments the dough.",
}
HASHING = ("--embedder", "hashing")
FINGERPRINT = Fingerprint.of(HashingEmbedder().identity, Chunker())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def library(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options that mean a library with the corpus in it."""
    options = ("--path", str(tmp_path_factory.mktemp("library")), *HASHING)
    done = rag("index", corpus, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 added, 0 updated, 0 unchanged, 0 removed: 3 documents in 3 chunks\n"
    return options


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"qid": "1", "question": "Which table maps blocks to pages?", "doc_id": "paging"},
        {"qid": "2", "question": "To whom is the log replicated?", "doc_id": ["raft", "x"]},
        {"qid": "3", "question": "Who ferments the dough?", "doc_id": "paging"},
    ]
    return jsonl(tmp_path_factory.mktemp("questions") / "questions.jsonl", rows)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"qid": "s", "question": "How tall is Everest?", "doc_id": None}]
    return jsonl(tmp_path_factory.mktemp("strangers") / "strangers.jsonl", rows)


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_index_again_prune_and_rebuild(corpus: Path, tmp_path: Path) -> None:
    options = ("--path", tmp_path / "library", *HASHING)
    assert rag("index", corpus, *options).stdout.startswith("3 added")
    other = tmp_path / "other"
    other.mkdir()
    (other / "raft.txt").write_text(TEXTS["raft"] + " Terms only grow.")
    assert rag("index", other, *options).stdout.startswith("0 added, 1 updated, 0 unchanged, 0 r")
    pruned = rag("index", other, *options, "--prune").stdout
    assert pruned.startswith("0 added, 0 updated, 1 unchanged, 2 removed: 1 documents")
    refused = rag("index", corpus, *options, "--embedder-dim", 64)
    assert refused.returncode == 2
    assert "--rebuild" in refused.stderr
    rebuilt = rag("index", corpus, *options, "--embedder-dim", 64, "--rebuild")
    assert rebuilt.stdout.startswith("3 added, 0 updated, 0 unchanged, 0 removed: 3 documents")


def test_label_one(library: tuple[str, ...]) -> None:
    done = rag("label", "Who replicates the log?", *library)
    doc_id, score, query = done.stdout.rstrip("\n").split("\t")
    assert (done.returncode, doc_id, query) == (0, "raft", "Who replicates the log?")
    assert 0 < float(score) < 1


def test_label_lines_of_stdin_and_of_a_file(library: tuple[str, ...], tmp_path: Path) -> None:
    text = "Who replicates the log?\n\nyeast\x1b[31m\x00 in dough\n"
    done = rag("label", *library, stdin=text)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["raft", "dough"]
    assert "\x1b" not in done.stdout
    (tmp_path / "queries.txt").write_text(text)
    assert rag("label", "--file", tmp_path / "queries.txt", *library).stdout == done.stdout


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_stdin_that_is_no_text_is_one_line(
    library: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    errors: str,
) -> None:
    stdin = TextIOWrapper(BytesIO(b"the log?\n\xff\n"), "utf-8", errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["label", *library]) == 2
    assert capsys.readouterr() == ("", "kvswarm rag: stdin is not UTF-8: convert it to UTF-8\n")


@pytest.mark.parametrize("more", [(), ("--file", "-")])
def test_stdin_that_is_closed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["label", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing to label: give a question" in line


@pytest.mark.parametrize("command", ["label", "explain", "eval", "help"])
def test_a_full_disk_behind_stdout_is_one_line(
    library: tuple[str, ...],
    questions: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    arguments = {
        "label": ["label", "Who replicates the log?", *library],
        "explain": ["explain", "Who replicates the log?", *library],
        "eval": ["eval", "--questions", str(questions), *library],
        "help": ["--help"],
    }
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments[command]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvswarm rag: cannot write to stdout: No space left on device: ")


def test_a_full_disk_behind_stdout_is_no_second_error_at_the_end() -> None:
    script = "from rag_store.cli.main import main; raise SystemExit(main(['--help']))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)


def test_what_stdout_cannot_encode_is_escaped(
    library: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="latin-1"))
    assert main(["label", "何 log é?", *library]) == 0
    assert written.getvalue().endswith(b"\t\\u4f55 log \xe9?\n")


def test_after_a_gap_nothing_more_is_written() -> None:
    class Once(StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                self.full = False
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    stream = Once()
    output = Output(stream, RagError)
    for _ in range(2):
        with pytest.raises(RagError, match="cannot write to stdout: No space"):
            output.write("label")
    assert stream.getvalue() == ""


def test_label_in_json(library: tuple[str, ...]) -> None:
    label = json.loads(rag("label", "Who replicates the log?", "--json", *library).stdout)
    assert label["query"] == "Who replicates the log?"
    assert label["doc_id"] == label["candidates"][0]["doc_id"] == "raft"


def test_a_bad_line_does_not_fail_the_others(library: tuple[str, ...]) -> None:
    options = (*library, "--max-query-chars", 30)
    done = rag("label", *options, stdin="the log?\n" + "x" * 31 + "\nyeast?\n")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["raft", "dough"]
    assert done.returncode == 2
    assert "31 characters" in done.stderr


def test_explain(library: tuple[str, ...]) -> None:
    question = "Who replicates the log of bread?"
    lines = dict(
        line.split(maxsplit=1) for line in rag("explain", question, *library).stdout.splitlines()
    )
    assert lines["label"] == "raft"
    assert "threshold" in lines["score"]
    assert lines["best"].startswith("raft: fused")
    assert "cosine" in lines["best"]
    assert "behind" in lines["runner-up"]
    assert "log" in lines["words"]
    assert TEXTS["raft"] in lines["chunk"]
    reasons = json.loads(rag("explain", question, "--json", *library).stdout)
    assert reasons["chunk_text"] == TEXTS["raft"]
    assert reasons["terms"]["log"] > 0
    assert reasons["terms"]["bread"] == 0


def test_explain_says_that_the_question_says_nothing(library: tuple[str, ...]) -> None:
    said = rag("explain", "42?", *library).stdout
    assert "label       refused: the question says nothing\n" in said
    assert "score       0.000 reaches the threshold 0.000\n" in said
    assert "not fitted: no score is refused" in said


def test_explain_shows_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"doc_id": "a", "text": "Bread\x9b2J rises\u202e."},
        {"doc_id": "b", "text": "Wine.", "questions": ["Who\x9b2J drinks\u202e?"]},
    ]
    options = ("--path", tmp_path / "library", *HASHING)
    assert rag("index", jsonl(tmp_path / "corpus.jsonl", rows), *options).returncode == 0
    bread = rag("explain", "Does bread rise?", *options).stdout
    wine = rag("explain", "Who drinks?", *options).stdout
    assert "chunk 0     Bread 2J rises ." in bread.splitlines()
    assert "question    Who 2J drinks ? (of b, not in its text)" in wine.splitlines()
    assert (bread + wine).replace("\n", "").isprintable()


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for name in ("a.md", "b.pdf", "expansions.jsonl"):
        (tmp_path / "corpus" / name).write_text("Bread rises.")
    found = rag("index", tmp_path / "corpus", "--path", tmp_path / "library", *HASHING)
    assert found.returncode == 0
    assert "1 added" in found.stdout
    assert found.stderr.endswith("as only .md and .txt are read: b.pdf, expansions.jsonl\n")


def test_eval_in_json(library: tuple[str, ...], questions: Path, strangers: Path) -> None:
    options = ("--questions", questions, "--unanswerable", strangers, "--json")
    found = json.loads(rag("eval", *options, *library).stdout)
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["top3"] == 1
    low, high = found["top1_interval"]
    assert 0 < low < found["top1"] < high < 1
    assert found["mrr"] == pytest.approx(5 / 6, abs=0.1)
    assert found["label_ms"].keys() == {"p50", "p95", "p99"}
    assert found["reject"] == 0, "the hashing embedder refuses nothing until fitted"
    assert found["baselines"].keys() == {"whole_document", "dense", "bm25", "oracle"}
    assert found["baselines"]["oracle"]["top1"] == 1
    assert found["baselines"]["bm25"]["top1"] == pytest.approx(2 / 3)
    assert found["baselines"]["bm25"]["p"] == 1, "the same questions are right"
    assert found["baselines"]["oracle"]["p"] is None
    assert found["reject_by_kind"].keys() == {"strangers"}, "named after the file"
    assert found["confusions"] == [{"asked": "paging", "labelled": "dough", "count": 1}]
    (size,) = found["sizes"]
    assert size["hnsw_recall"] == 1
    assert size["hnsw_ms"].keys() == {"p50", "p95", "p99"}


def test_eval_of_a_split_with_kinds(library: tuple[str, ...], tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"qid": "1", "question": "Which table maps blocks to pages?", "doc_id": "paging"},
        {"qid": "2", "question": "Who ferments the dough?", "doc_id": "paging"},
        {"qid": "3", "question": "To whom is the log replicated?", "doc_id": "raft"},
    ]
    for row, (kind, split) in zip(
        rows, [("direct", "dev"), ("deep", "dev"), ("direct", "test")], strict=True
    ):
        row |= {"kind": kind, "split": split}
    options = ("--questions", jsonl(tmp_path / "q.jsonl", rows), *library)
    found = json.loads(rag("eval", *options, "--split", "dev", "--json").stdout)
    assert found["questions"] == 2
    assert {kind: each["top1"] for kind, each in found["by_kind"].items()} == {
        "deep": 0,
        "direct": 1,
    }
    assert json.loads(rag("eval", *options, "--json").stdout)["questions"] == 3
    table = rag("eval", *options, "--split", "test").stdout
    assert "1 questions" in table
    assert "not significant" in table
    wrong = rag("eval", *options, "--split", "tset")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "its splits are dev, test" in wrong.stderr


def test_eval_of_another_corpus_with_distractors(
    corpus: Path, questions: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"doc_id": f"extra{at}", "title": "", "text": f"Paragraph {at} of a law on harbours."}
        for at in range(8)
    ]
    extra = jsonl(tmp_path / "extra.jsonl", rows)
    options = ("--corpus", corpus, "--questions", questions, "--distractors", extra)
    path = tmp_path / "untouched"
    done = rag("eval", *options, "--json", "--path", path, *HASHING)
    sizes = json.loads(done.stdout)["sizes"]
    assert [each["documents"] for each in sizes] == [3, 4, 5, 7, 11]
    assert not path.exists()
    table = rag("eval", *options, "--path", path, *HASHING).stdout
    assert "top-1" in table
    assert "whole_document" in table
    assert "11 documents" in table


def test_distractors_take_no_documents_place(corpus: Path, questions: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"doc_id": doc_id, "title": "", "text": "A law on harbours."} for doc_id in ("x", "raft")
    ]
    extra = jsonl(tmp_path / "extra.jsonl", rows)
    options = ("--corpus", corpus, "--questions", questions, "--distractors", extra)
    done = rag("eval", *options, "--json", *HASHING)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{extra} and {corpus} both have a document 'raft'" in done.stderr


def test_fit_threshold(corpus: Path, questions: Path, strangers: Path, tmp_path: Path) -> None:
    options = ("--path", tmp_path, *HASHING)
    rag("index", corpus, *options)
    done = rag("fit-threshold", questions, strangers, "--keep", 1, *options)
    assert done.returncode == 0, done.stderr
    assert "fitted on 3 answerable and 1 unanswerable" in done.stdout
    assert "keeps 100.0%" in done.stdout
    stranger = rag("label", "How tall is Everest?", *options).stdout
    assert stranger.startswith("-\t"), "kept for the next process"
    explained = rag("explain", "How tall is Everest?", *options).stdout
    assert "refused" in explained
    assert "below the threshold" in explained


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "unknown command 'nothing'"),
        (["index"], "PATH"),
        (["index", "/nowhere"], "/nowhere does not exist"),
        (["label", "a", "--file", "b"], "not both"),
        (["label", "--file", "/nowhere"], "cannot read /nowhere"),
        (["label", "a", "--retriever", "x"], "--retriever"),
        (["label", "a", "--chunk-tokens", "8"], "--overlap-tokens"),
        (["label", "a", "--embedder", "openai"], "--embedder-url"),
        (["label", "a", "--collection", "a b"], "'a b'"),
        (["label", "a", "--coll", "ab"], "--coll"),
        (["label", "a", "--chroma-url", "foo"], "--chroma-url is 'foo'"),
        (["label", "a", "--chroma-url", "http://x:99999"], "give http://host:port"),
        (["label", "a", "--chroma-url", "http://me:secret@x"], "holds a password"),
        (["label", "a", "--path", "/proc/x"], "there is no library in /proc/x"),
        (["serve", "--port", "0", "--path", "/proc/x"], "cannot write to /proc/x"),
        (["index", "/", "--embedder-dim", "99999999999999999999"], "from 1 to 16384"),
        (["index", "/", "--embedder-dim", "0"], "from 1 to 16384"),
        (["index", "/", "--embedder-max-tokens", "9" * 20], "from 1 to 1000000"),
        (["eval"], "--questions"),
        (["eval", "--questions", "/nowhere"], "/nowhere does not exist"),
        (["serve", "--port", "70000"], "from 0 to 65535"),
        (["serve", "--bind", "256.0.0.1"], "cannot listen on 256.0.0.1"),
        (["serve", "--bind", "a..b"], "cannot listen on a..b"),
        (["serve", "--bind", ""], "cannot listen on :"),
        (["serve", "--bind", " "], "cannot listen on  :"),
        (["serve", "--bind", "a" * 70], "choose another --bind or --port"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    fixed = [] if "--embedder" in arguments or arguments == ["nothing"] else list(HASHING)
    assert main([*arguments, *fixed]) == 2
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith("kvswarm rag: ")
    assert error.count("kvswarm rag: ") == 1
    assert said in last
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


ASKING = (
    ("label", "yeast?"),
    ("explain", "yeast?"),
    ("eval", "--questions", "questions"),
    ("fit-threshold", "questions", "questions"),
)


@pytest.fixture
def asking(questions: Path, request: pytest.FixtureRequest) -> list[object]:
    """A command that only asks, with its files."""
    return [questions if part == "questions" else part for part in request.param]


@pytest.mark.parametrize("asking", ASKING, indirect=True)
def test_who_asks_a_library_that_is_not_there_makes_none(
    asking: list[object], tmp_path: Path
) -> None:
    for there in (False, True):
        if there:
            (tmp_path / "typo").mkdir()
        done = rag(*asking, "--path", tmp_path / "typo", *HASHING)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"there is no library in {tmp_path / 'typo'}" in done.stderr
        assert "kvswarm rag index" in done.stderr
        assert list(tmp_path.rglob("*")) == ([tmp_path / "typo"] if there else [])


@pytest.mark.parametrize("asking", ASKING, indirect=True)
def test_who_asks_a_collection_that_is_not_there_makes_none(
    asking: list[object], library: tuple[str, ...]
) -> None:
    for _ in range(2):
        done = rag(*asking, *library, "--collection", "typo")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "there is no collection 'typo' in " in done.stderr
        assert "kvswarm rag index" in done.stderr


@pytest.mark.parametrize("asking", ASKING, indirect=True)
def test_who_asks_a_library_without_documents_is_told(asking: list[object], tmp_path: Path) -> None:
    ChunkStore(Settings(tmp_path), FINGERPRINT).close()
    done = rag(*asking, "--path", tmp_path, *HASHING)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"the collection 'default' in {tmp_path} holds no document" in done.stderr
    assert "kvswarm rag index" in done.stderr


def test_an_empty_query(library: tuple[str, ...]) -> None:
    done = rag("label", "  ", *library)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the query is empty" in done.stderr


def test_eval_and_fit_threshold_by_judgements_of_their_own(
    corpus: Path, strangers: Path, tmp_path: Path
) -> None:
    options = ("--path", tmp_path / "library", *HASHING)
    rag("index", corpus, *options)
    rows: list[dict[str, object]] = [
        {"_id": "1", "text": "Which table maps blocks to pages?"},
        {"_id": "2", "text": "Who ferments the dough?"},
        {"_id": "3", "text": "To whom is the log replicated?"},
    ]
    queries, qrels = jsonl(tmp_path / "queries.jsonl", rows), tmp_path / "qrels.txt"
    qrels.write_text("1 0 paging 1\n2 0 paging 1\n")
    found = json.loads(
        rag("eval", "--questions", queries, "--qrels", qrels, "--json", *options).stdout
    )
    assert (found["questions"], found["top1"]) == (2, 0.5)
    fitted = rag("fit-threshold", queries, strangers, "--qrels", qrels, *options).stdout
    assert "fitted on 2 answerable and 1 unanswerable" in fitted
    for refused in (
        rag("eval", "--questions", queries, *options),
        rag("fit-threshold", queries, strangers, *options),
    ):
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "give judgements with --qrels" in refused.stderr


@pytest.mark.parametrize("command", ["eval", "fit-threshold"])
def test_a_question_about_an_unknown_document(
    library: tuple[str, ...], strangers: Path, tmp_path: Path, command: str
) -> None:
    rows: list[dict[str, object]] = [{"qid": "1", "question": "a?", "doc_id": "missing"}]
    asked = jsonl(tmp_path / "q.jsonl", rows)
    given = ("--questions", asked) if command == "eval" else (asked, strangers)
    done = rag(command, *given, *library)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "question '1' is about 'missing', which is not among the 3 documents" in done.stderr


@pytest.mark.parametrize("command", ["eval", "fit-threshold"])
@pytest.mark.parametrize("long", ["answerable", "unanswerable"])
def test_a_question_that_is_too_long_is_named(
    library: tuple[str, ...], tmp_path: Path, command: str, long: str
) -> None:
    files: dict[str, Path] = {}
    for name, doc_id in (("answerable", "raft"), ("unanswerable", None)):
        text = "x" * 70 if name == long else "log?"
        asked = (("short", "yeast?"), (f"{name} 7", text))
        rows: list[dict[str, object]] = [
            {"qid": qid, "question": question, "doc_id": doc_id} for qid, question in asked
        ]
        files[name] = jsonl(tmp_path / f"{name}.jsonl", rows)
    given: tuple[object, ...] = tuple(files.values())
    if command == "eval":
        given = ("--questions", given[0], "--unanswerable", given[1])
    done = rag(command, *given, *library, "--max-query-chars", 30)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"question '{long} 7': the query has 70 characters: send at most 30" in done.stderr


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    helped = capsys.readouterr().out
    asking = ("serve", "label", "explain", "eval")
    for command in ("index", *asking, "fit-threshold"):
        assert f"\n  kvswarm rag {command}" in helped
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0


def test_kvswarm_hands_over(capsys: pytest.CaptureFixture[str]) -> None:
    from loadgen.cli.main import main as kvswarm

    assert kvswarm(["rag", "--help"]) == 0
    assert "kvswarm rag index PATH" in capsys.readouterr().out
    assert kvswarm(["rag", "nothing"]) == 2


def test_kvswarm_names_every_command() -> None:
    from loadgen.cli.main import HELP as OF_KVSWARM

    named = OF_KVSWARM.partition("kvswarm rag COMMAND")[2].partition("\n  kvswarm")[0]
    commands = re.findall(r"^  kvswarm rag ([\w-]+)", HELP, re.MULTILINE)
    assert commands
    assert set(commands) <= set(re.findall(r"[\w-]+", named))


def test_kvswarm_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "from loadgen.cli.main import main; sys.exit(main(['rag', 'label', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kvswarm: `kvswarm rag` needs numpy")
    assert install_command("rag") in done.stderr
