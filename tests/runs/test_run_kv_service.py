"""`kvswarm run rag --labels kv`: the service it starts, with a small model and a made-up engine."""

import csv
import json
import subprocess
from pathlib import Path

import psutil
import pytest
from rag_process import write_corpus
from run_process import KVSWARM, TIMEOUT_S, wait_until

pytest.importorskip("torch")
ENGINE = Path(__file__).parents[1] / "unit" / "fake_engine.py"
CATALOG = """
[services.engine]
argv = ["{python}", "ENGINE", "--port", "{port}", "--window", "4096"]
ready = "/health"
reset = "/reset"

[targets.one]
services = ["engine"]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Called as the engine calls its own."""
    from loadgen.targets import demo_model

    shape = demo_model.Shape(hidden=64, layers=1, heads=4, kv_heads=2, intermediate=96)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(demo_model.SHAPES, "tiny", shape)
        return demo_model.build_model(
            tmp_path_factory.mktemp("model") / "m", "tiny", ["Words to learn from. " * 20]
        )


def command(folder: Path, model: object, *more: object) -> list[str]:
    catalog, corpus = folder / "targets.toml", folder / "corpus"
    catalog.write_text(CATALOG.replace("ENGINE", str(ENGINE)))
    if not corpus.exists():
        write_corpus(corpus)
    target = ["--target", "one", "--targets", catalog, "--corpus", corpus, "--out", folder / "run"]
    small = ["--contexts", 3, "--output-tokens", 2, "-u", 1, "--max-lag-ms", 60_000]
    words = [*target, *small, "--labels", "kv", "--model", model, *more]
    return [*KVSWARM, "run", "rag", *map(str, words)]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_requests_keep_their_context_and_are_labelled(model: Path, tmp_path: Path) -> None:
    done = run(command(tmp_path, model, "-t", "2s"))
    assert done.returncode == 0, done.stderr
    assert f"starting the KV service with the questions of {tmp_path / 'corpus'} …" in done.stderr
    with (tmp_path / "run" / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 3
    for row in rows:
        assert row["rag_context_id"] == row["context_id"]
        assert float(row["ttft_ms"]) >= float(row["retrieval_ms"]) > 0
        # Each document has one question, which cannot label itself.
        assert row["label_correct"] == "false"
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["rag"]
    assert (facts["model"], facts["documents"], facts["questions"]) == ("m", 3, 3)
    log = (tmp_path / "run" / "engine" / "kv.log").read_text()
    assert "labelling by the KV of m, 3 earlier questions about 3 documents" in log


def test_a_service_that_dies_ends_the_run_and_is_named(model: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path, model), stderr=subprocess.PIPE, text=True)
    requests = tmp_path / "run" / "requests.csv"
    try:
        wait_until(lambda: requests.is_file() and len(requests.read_text().splitlines()) > 2)
        family = psutil.Process(process.pid).children(recursive=True)
        (service,) = [
            each
            for each in family
            if "kv" in each.cmdline() and "loadgen.targets.guard" not in each.cmdline()
            and "run" not in each.cmdline()
        ]  # fmt: skip
        service.kill()
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 3
    assert "kvswarm: kv was ended by SIGKILL (log: " in said
    assert not psutil.wait_procs(family, timeout=20)[1]


def test_a_service_that_cannot_start_is_told(model: Path, tmp_path: Path) -> None:
    words = command(tmp_path, model, "-t", "1s")
    for path in (tmp_path / "corpus").glob("questions*.jsonl"):
        first = path.read_text().splitlines()[0]
        path.write_text(f"{first}\n")
    done = run(words)
    assert done.returncode == 3
    assert "kvswarm: kv exited with code 2: " in done.stderr
    assert "a label needs two or more" in done.stderr
    assert "starting one" not in done.stderr


def test_a_model_without_a_folder_is_refused(tmp_path: Path) -> None:
    done = run(command(tmp_path, "org/name", "-t", "1s"))
    assert done.returncode == 2
    assert "org/name is no folder" in done.stderr
    assert "starting one" not in done.stderr
