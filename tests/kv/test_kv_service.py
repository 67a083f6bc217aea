"""`kvswarm kv serve` over real HTTP, with a model of two layers."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kv_reading.features import pooled
from kv_reading.kv import ReferenceModel
from kv_reading.labelling import Centroids, KvLabeller
from kv_reading.service import KvService
from loadgen.cli.main import main
from loadgen.client.label_probe import probe_kv
from loadgen.client.retrieval import LABEL_ROUTE, RetrievalClient
from loadgen.errors import HostError

pytest.importorskip("torch")
KV = (sys.executable, "-m", "loadgen.cli.main", "kv", "serve", "--port", "0")
EARLIER = {
    "baking": ("What does yeast do to dough?", "How long does bread rise?"),
    "raft": ("Who replicates the log?", "When is a leader elected?"),
    "kept": ("Which question stands alone?",),
}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [(doc_id, text, "dev") for doc_id, texts in EARLIER.items() for text in texts]
    rows.append(("never", "Is this asked of the split test only?", "test"))
    lines = [
        json.dumps({"qid": f"q{at}", "question": text, "doc_id": doc_id, "split": split})
        for at, (doc_id, text, split) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("q") / "questions.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def serving(model: Path, questions: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [*KV, "--model", str(model), "--questions", str(questions)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise AssertionError(line + process.communicate(timeout=30)[1])
        yield found[0], process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url(model: Path, questions: Path) -> Iterator[str]:
    with serving(model, questions) as (address, _):
        yield address


def ask(url: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"{url}{path}", data, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize("path", ["/v1/label", "/health", "/ready", "/metrics"])
@pytest.mark.parametrize("foreign", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
async def test_a_foreign_page_is_refused(path: str, foreign: dict[str, str]) -> None:
    labeller = cast(KvLabeller, SimpleNamespace(doc_ids=("raft",), questions=3))
    async with TestClient(TestServer(KvService(labeller, "m").app())) as client:
        method = "POST" if path == "/v1/label" else "GET"
        async with client.request(method, path, json={"query": "x"}, headers=foreign) as answer:
            assert answer.status == 403
        async with client.get("/health") as answer:
            assert answer.status == 200


def expected(model: Path, question: str) -> list[str]:
    """The nearest documents by transformers and the centroids alone."""
    from tokenizers import Tokenizer

    tokenizer, reference = Tokenizer.from_file(str(model / "tokenizer.json")), ReferenceModel(model)

    def row(text: str) -> Any:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return pooled(reference.kv(ids))[0].ravel()

    pairs = [(doc_id, text) for doc_id, texts in EARLIER.items() for text in texts]
    known = [(doc_id, text) for doc_id, text in pairs if not question.startswith(text)]
    # A question that was asked before scales the columns, and is in no centroid.
    rows = np.stack([row(text) for _, text in pairs])
    centroids = Centroids(rows, [doc_id for doc_id, _ in pairs])
    without = [at for at, pair in enumerate(pairs) if pair not in known]
    return [near.doc_id for near in centroids.ranked(row(question), without)]


@pytest.mark.parametrize(
    "question",
    [
        *("Does dough rise without yeast?", "Which question stands alone?", "x"),
        "Who replicates the log? Answer in a new way, version 2.",
    ],
)
def test_a_label_is_the_nearest_centroid_without_the_question_itself(
    url: str, model: Path, question: str
) -> None:
    status, label = ask(url, "/v1/label", {"query": f" {question} "})
    assert status == 200
    assert [each["doc_id"] for each in label["candidates"]] == expected(model, question)
    assert label["doc_id"] == label["candidates"][0]["doc_id"]
    scores = [each["score"] for each in label["candidates"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert label["margin"] == pytest.approx(scores[0] - scores[1])
    timings = label["timings"]
    parts = sum(timings[name] for name in ("queue_ms", "compute_ms", "search_ms"))
    assert timings["total_ms"] == pytest.approx(parts)
    assert timings["compute_ms"] > 0


def test_many_are_answered_in_their_order(url: str) -> None:
    texts = ["Does dough rise?", "Which question stands alone?", "Does dough rise?"]
    _, many = ask(url, "/v1/label", {"queries": texts})
    assert [each["index"] for each in many["data"]] == [0, 1, 2]
    single = [ask(url, "/v1/label", {"query": text})[1] for text in texts]
    for one, other in zip(many["data"], single, strict=True):
        assert one["candidates"] == other["candidates"]


async def test_the_load_generator_speaks_its_protocol(url: str, model: Path) -> None:
    facts = await probe_kv(url, "toy", ["raft", "never", "baking"])
    assert (facts.documents, facts.questions, facts.unknown) == (3, 5, 1)
    async with RetrievalClient(url, route=LABEL_ROUTE) as client:
        found = await client.retrieve("Does dough rise without yeast?")
    assert found.doc_id == expected(model, "Does dough rise without yeast?")[0]
    assert found.text == ""
    assert found.retrieval_ms >= found.timings_ms["total_ms"]


async def test_another_model_than_the_hosts_is_refused(url: str) -> None:
    with pytest.raises(HostError, match="computes the KV of toy, and the host serves llama"):
        await probe_kv(url, "llama", ())


def test_it_tells_what_it_labels_by(url: str) -> None:
    status, health = ask(url, "/health")
    assert (status, health["status"], health["model"]) == (200, "ok", "toy")
    assert "keys and values of all layers" in health["features"]
    assert (health["documents"], health["questions"]) == (3, 5)
    with urllib.request.urlopen(f"{url}/metrics") as page:
        assert b"kvswarm_kv_label_seconds_count" in page.read()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "give either 'query' or 'queries'"),
        ({"query": 3}, 422, "'query' is 3: give a text"),
        ({"query": " "}, 422, "'query' is empty"),
        ({"query": "x" * 20_001}, 413, "send at most 20000"),
        ([], 400, "send a JSON object"),
    ],
)
def test_what_cannot_be_labelled_is_one_sentence(
    url: str, body: object, status: int, said: str
) -> None:
    found, answer = ask(url, "/v1/label", body)
    assert found == status
    assert said in answer["error"]["message"]


def test_one_question_that_cannot_be_labelled_leaves_the_others(url: str) -> None:
    status, answer = ask(url, "/v1/label", {"queries": ["ok", None, " "]})
    assert status == 200
    good, null, empty = answer["data"]
    assert good["index"] == 0
    assert "doc_id" in good
    assert (null["index"], empty["index"]) == (1, 2)
    assert "'queries[1]' is null" in null["error"]["message"]
    assert "is empty" in empty["error"]["message"]


def test_a_signal_ends_it(model: Path, questions: Path) -> None:
    with serving(model, questions) as (_, process):
        process.terminate()
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0


def test_wrong_use_is_one_line(
    model: Path, questions: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"qid": "q", "question": "About nothing?", "doc_id": null}\n')
    cases: list[tuple[str, dict[str, object]]] = [
        ("has no tokenizer.json", {"model": tmp_path}),
        ("no earlier questions: ", {"questions": tmp_path / "nowhere"}),
        ("names one document", {"questions": empty}),
        ("has no question of the split 'odd'", {"split": "odd"}),
        ("about 1 document(s)", {"split": "test"}),
        ("cannot listen on 127.0.0.1", {"port": url.rpartition(":")[2]}),
        ("cannot listen on :0", {"bind": ""}),
    ]
    for said, wrong in cases:
        options = {"model": model, "questions": questions, "port": 0, **wrong}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        assert main(["kv", "serve", *words]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1


def test_a_model_that_is_none_is_told(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    words = ["--model", str(tmp_path), "--questions", str(questions), "--port", "0"]
    assert main(["kv", "serve", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"kvswarm: cannot load the model {tmp_path}: ")
    assert told.count("\n") == 1
