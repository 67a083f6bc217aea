"""Runs whose contexts a real RAG service finds: rows, workers, and what happens when it is gone."""

import csv
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from run_process import TIMEOUT_S, HostProcess, Ran, arguments, host_process, run_swarm, wait_until

from loadgen.workload.workload import is_mistaken, other_context

ROOT = Path(__file__).parents[2]
SUBJECTS = {
    "bread": "Yeast ferments the dough, and the loaf rises before it is baked in a hot oven.",
    "clocks": "A pendulum swings evenly, and an escapement lets the hands of the clock advance.",
    "raft": "A leader replicates its log to followers, who vote for another when it falls silent.",
    "tides": "The moon pulls at the ocean, so that its water rises twice a day at every coast.",
}


@dataclass(frozen=True)
class Service:
    url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [
        {"doc_id": name, "title": name, "text": f"{text} " * 8} for name, text in SUBJECTS.items()
    ]
    asked = [
        {"qid": f"{name}-{n}", "doc_id": name, "question": f"{text} Why {n}?"}
        for name, text in SUBJECTS.items()
        for n in range(3)
    ]
    for name, rows in (("corpus.jsonl", lines), ("questions.jsonl", asked)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "corpus.jsonl"


@contextmanager
def rag_service(folder: Path, corpus: Path) -> Iterator[Service]:
    """`kvswarm rag serve` with the documents of the corpus."""
    command = [sys.executable, "-m", "rag_store", "serve", "--port", "0", "--embedder", "hashing"]
    process = subprocess.Popen(
        [*command, "--path", str(folder / "library")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        (url,) = re.findall(r"http://\S+", process.stdout.readline())
        documents = [json.loads(line) for line in corpus.read_text().splitlines()]
        body = json.dumps({"documents": documents}).encode()
        with urllib.request.urlopen(f"{url}/v1/documents", body, timeout=TIMEOUT_S) as answer:
            assert json.load(answer)["added"] == len(documents)
        yield Service(url, process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Iterator[Service]:
    with rag_service(tmp_path_factory.mktemp("service"), corpus) as running:
        yield running


@pytest.fixture
def engine() -> Iterator[HostProcess]:
    with host_process("vllm") as running:
        yield running


def options(corpus: Path, *more: object) -> tuple[object, ...]:
    fixed = ("--model", "normal", "--corpus", corpus, "--contexts", 4, "--output-tokens", 2)
    return (*fixed, "-u", 4, "-r", 4, *more)


def expected_context(row: dict[str, str], seed: int, share: float) -> str:
    """What must stand before the question: the true context, but for the mistakes on purpose."""
    names, place = list(SUBJECTS), int(row["request_id"])
    if not is_mistaken(seed, share, place):
        return row["context_id"]
    return names[other_context(seed, len(names), place, names.index(row["context_id"]))]


def test_found_and_wrong_contexts_of_a_swarm_with_workers(
    engine: HostProcess, service: Service, corpus: Path, tmp_path: Path
) -> None:
    chosen = ("--rag-url", service.url, "--rag-wrong", 0.4, "--seed", 5)
    more = options(corpus, *chosen, "--processes", 2, "-t", "2s")
    ran = run_swarm(engine.url, tmp_path / "run", *more, file="rag")
    assert ran.code == 0, ran.output
    rows = ran.rows
    assert {row["outcome"] for row in rows} == {"ok"}
    assert {row["worker"] for row in rows} == {"0", "1"}
    for row in rows:
        assert row["label"] == row["rag_context_id"] == expected_context(row, 5, 0.4)
        assert row["label_correct"] == str(row["label"] == row["context_id"]).lower()
        assert float(row["ttft_ms"]) >= float(row["retrieval_ms"]) > 0
    labels = sorted(body["vllm_xargs"]["context"] for body in engine.bodies())
    assert labels == sorted(row["label"] for row in rows)
    starts = sorted(prompt[:40] for prompt in engine.prompts())
    assert starts == sorted(SUBJECTS[label][:40] for label in labels)

    summary, right = ran.json("summary.json"), [row["label_correct"] for row in rows].count("true")
    assert 0 < right < len(rows)
    assert summary["label_accuracy"] == pytest.approx(right / len(rows))
    assert summary["refused_share"] == 0
    assert 0 < summary["retrieval_share"] < 1
    assert summary["metrics"]["retrieval_ms"]["count"] == len(rows)
    assert ran.json("run.json")["rag"]["documents"] == len(SUBJECTS)
    with (ran.out / "locust_stats.csv").open(newline="") as file:
        counts = {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
    assert counts["Retrieval (ms)"] == len(rows)
    assert f"{right / len(rows):.1%} of the labels right" in ran.output


def test_an_arm_without_retrieval_needs_no_service(
    engine: HostProcess, corpus: Path, tmp_path: Path
) -> None:
    more = options(corpus, "--labels", "shuffled", "-t", "1s")
    ran = run_swarm(engine.url, tmp_path / "run", *more, file="rag")
    assert ran.code == 0, ran.output
    for row in ran.rows:
        assert (row["rag_context_id"], row["retrieval_ms"]) == ("", "")
        assert row["label"] in SUBJECTS.keys() - {row["context_id"]}
        assert row["label_correct"] == "false"
    starts = sorted(prompt[:40] for prompt in engine.prompts())
    assert starts == sorted(SUBJECTS[row["context_id"]][:40] for row in ran.rows)


def test_a_service_that_dies_fails_the_requests_and_ends_the_run(
    engine: HostProcess, corpus: Path, tmp_path: Path
) -> None:
    with rag_service(tmp_path, corpus) as service:
        more = options(corpus, "--rag-url", service.url, "-t", "10m")
        command = arguments(engine.url, tmp_path / "run", *more, file="rag")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            wait_until(lambda: len(engine.prompts()) >= 4)
            service.process.kill()
            output, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    ran = Ran(process.returncode, output, tmp_path / "run")
    assert ran.code == 3, output
    assert f"the RAG service {service.url} is gone: ending the run" in output
    assert ran.json("run.json")["host_died"] is True
    lost = [row for row in ran.rows if row["outcome"] not in ("ok", "cancelled")]
    assert lost
    for row in lost:
        assert row["error"].startswith(f"RAG service {service.url}: ")
        assert (row["sent_s"], row["status"], row["label"], row["retrieval_ms"]) == ("",) * 4
    assert len(engine.prompts()) == sum(bool(row["sent_s"]) for row in ran.rows)
    assert ran.json("summary.json")["failed"] == len(lost)
    assert f"RAG service {service.url}" in output
    assert "Traceback" not in output


def test_what_a_hung_service_has_kept_waiting_is_said(
    engine: HostProcess, corpus: Path, tmp_path: Path
) -> None:
    with rag_service(tmp_path, corpus) as service:
        more = options(corpus, "--rag-url", service.url, "-t", "2s", "--drain", 0.5)
        command = arguments(engine.url, tmp_path / "run", *more, file="rag")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            wait_until(lambda: len(engine.prompts()) >= 4)
            service.process.send_signal(signal.SIGSTOP)
            output, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    ran = Ran(process.returncode, output, tmp_path / "run")
    waited = [row for row in ran.rows if row["outcome"] != "ok"]
    assert [(row["outcome"], row["late"]) for row in waited] == [("timeout", "true")] * 4, output
    assert ran.json("summary.json")["metrics"]["retrieval_ms"]["max"] > 500
    assert ran.code == 1
    assert "\n4 requests were still waiting for the RAG service\n" in output


def test_a_hung_service_ends_the_run(engine: HostProcess, corpus: Path, tmp_path: Path) -> None:
    with rag_service(tmp_path, corpus) as service:
        more = options(corpus, "--rag-url", service.url, "-t", "10m", "--max-silence", 2)
        command = arguments(engine.url, tmp_path / "run", *more, "--drain", 300, file="rag")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            wait_until(lambda: len(engine.prompts()) >= 4)
            service.process.send_signal(signal.SIGSTOP)
            output, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    ran = Ran(process.returncode, output, tmp_path / "run")
    assert ran.code == 3, output
    said = f"the RAG service {service.url} is not answering: nothing for 2 s: ending the run\n"
    assert said in output
    assert [row["outcome"] for row in ran.rows if row["late"]] == ["timeout"] * 4


def test_a_service_that_lacks_documents_is_refused(
    engine: HostProcess, service: Service, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "stranger.md").write_text("Nobody knows this.")
    (tmp_path / "other" / "questions.jsonl").write_text(
        json.dumps({"qid": "q", "question": "Who?", "doc_id": "stranger"})
    )
    more = options(tmp_path / "other", "--contexts", 1, "--rag-url", service.url, "-t", "1s")
    ran = run_swarm(engine.url, tmp_path / "run", *more, file="rag")
    assert ran.code == 2
    assert "lacks 1 of the corpus's 1 documents (stranger)" in ran.output
    assert f"kvswarm rag index {tmp_path / 'other'}" in ran.output
    assert not (tmp_path / "run").exists()
    assert engine.prompts() == []


def test_a_service_with_another_text_is_refused(
    engine: HostProcess, service: Service, corpus: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "corpus.jsonl"
    changed.write_text(corpus.read_text().replace("The moon", "The sun"))
    (tmp_path / "questions.jsonl").write_text((corpus.parent / "questions.jsonl").read_text())
    ran = run_swarm(engine.url, tmp_path / "run", *options(changed, "--rag-url", service.url),
                    "-t", "1s", file="rag")  # fmt: skip
    assert ran.code == 2
    assert "has another text for 1 of the corpus's 4 documents (tides)" in ran.output
    assert engine.prompts() == []


def test_plain_locust_wants_the_url_of_a_service(engine: HostProcess) -> None:
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / "rag.py")]
    fixed = ["--headless", "--host", engine.url, "--model", "normal", "-t", "1s"]
    done = subprocess.run(
        [*command, *fixed], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "--rag-url URL" in done.stderr
    assert "Traceback" not in done.stderr
