"""`kvswarm run --target`: a swarm on a real engine that is started for it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from engine_runs import read, rows

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1300)]

KVSWARM = (sys.executable, "-m", "loadgen.cli.main")
START_TIMEOUT_S = 600
"""As long as a run itself waits for an engine: how fast the machine is, is not tested."""


def command(out: Path, *more: object, target: str = "vllm") -> list[str]:
    small = ["--contexts", 3, "--context-tokens", 400, "--output-tokens", 8]
    size = ["--kv-tokens", 2560] if target.startswith("vllm") else []
    users = ["-u", 2, "-r", 2]
    fixed = ["run", "unordered", "--target", target, "--out", out, *small, *size, *users]
    return [*KVSWARM, *map(str, [*fixed, *more])]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    return lambda: (
        not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in _living(processes))
    )


def _living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if psutil.pid_exists(process.pid)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run on vLLM context by context.

    A slow machine has as many requests as a fast one: they come at a rate and all are awaited."""
    out = tmp_path_factory.mktemp("runs") / "run"
    open_loop = ["--arrivals", "constant", "--rate", 1.2, "-u", 0, "-t", "8s", "--drain", 300]
    done = subprocess.run(
        command(out, *open_loop, "--quantum", 8, target="vllm-context"),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return out


def test_a_run_starts_on_cold_caches(out: Path) -> None:
    assert read(out, "run.json")["cache_state"] == "cold"
    first_of_context: dict[str, dict[str, str]] = {}
    for row in sorted(rows(out), key=lambda row: float(row["sent_s"])):
        first_of_context.setdefault(row["context_id"], row)
    assert len(first_of_context) == 3
    assert {row["cached_tokens"] for row in first_of_context.values()} == {"0"}


def test_run_json_tells_the_capacity(out: Path) -> None:
    target = read(out, "run.json")["target"]
    assert target["name"] == "vllm-context"
    assert (target["block_size"], target["usable_blocks"], target["usable_tokens"]) == (
        *(128, 20),
        2560,
    )
    assert target["max_model_len"] == 2560
    assert "--num-gpu-blocks-override" in target["argv"]["vllm"]


def test_run_json_tells_how_the_context_scheduler_was_set(out: Path) -> None:
    argv = read(out, "run.json")["target"]["argv"]["vllm"]
    assert json.loads(argv[argv.index("--additional-config") + 1]) == {
        "context_scheduler": {"quantum": 8, "strict": True}
    }


def test_engine_and_client_count_the_same_tokens(out: Path) -> None:
    summary = read(out, "summary.json")
    ok = [row for row in rows(out) if row["outcome"] == "ok"]
    assert len(ok) == len(rows(out)) > 6
    cached = sum(int(row["cached_tokens"]) for row in ok)
    prompts = sum(int(row["prompt_tokens"]) for row in ok)
    server = summary["server"]
    assert server["cached_prompt_tokens"] == cached
    assert server["computed_prompt_tokens"] == prompts - cached
    assert server["hit_rate"] == pytest.approx(cached / prompts)
    assert server["hit_rate"] > 0.4
    assert {row["output_tokens"] for row in ok} == {"8"}


def test_context_lengths_are_exact(out: Path) -> None:
    lengths = {int(row["prompt_tokens"]) for row in rows(out)}
    assert min(lengths) >= 400
    assert max(lengths) <= 470, "400 tokens of context and a question"


def test_the_engine_is_watched(out: Path) -> None:
    samples = rows(out, "server_metrics.csv")
    assert len(samples) >= 5
    assert all(float(sample["engine_rss_mb"]) > 300 for sample in samples)


def test_a_killed_run_leaves_nothing_running(tmp_path: Path) -> None:
    """On the engine that starts soonest: what ends it is the same for all."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(out, target="hf-continuous"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: len(rows(out)) >= 4 or process.poll() is not None, START_TIMEOUT_S)
        assert process.poll() is None, process.communicate()[1]
        engines = family(process)
        engine = read(out, "run.json")["target"]["engine_pid"]
        assert engine in {each.pid for each in engines}
        process.kill()
        process.wait(timeout=40)
        wait_until(gone(engines), 30)
    finally:
        process.kill()
    assert len(rows(out)) >= 4


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for the engine's sockets."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def test_serve_keeps_an_engine_until_ctrl_c(tmp_path: Path, temporary: Path) -> None:
    """Started anywhere, with LMCache behind it, the context scheduler in it and its metrics on the
    engine's page."""
    logs = tmp_path / "logs"
    serve = [*KVSWARM, "serve", "vllm-lmcache-context", "--kv-tokens", "2560", "--logs", str(logs)]
    process = subprocess.Popen(
        serve,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if " serves " in line)
        url = ready.partition(" at ")[2].split()[0]
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            assert json.load(answer)["data"][0]["max_model_len"] == 2560
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert 'vllm:context_scheduler_active{engine="0"} 1.0' in metrics.splitlines()
        assert "pid=" not in metrics, "a gauge of several processes would be counted twice"
        services = family(process)
        programs = {word.strip() for each in services for word in each.cmdline()[:3]}
        assert {"loadgen.targets.guarded_lmcache", "VLLM::EngineCore"} <= programs
        process.send_signal(signal.SIGINT)
        process.wait(timeout=40)
        wait_until(gone(services), 30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert {each.name for each in logs.iterdir()} == {"lmcache.log", "vllm.log"}
    assert not any(temporary.iterdir()), "the files of the metrics went with the engine"


def test_a_context_that_cannot_fit_is_refused_before_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "run", "--context-tokens", 3000, "-t", "2s"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "3000" in done.stderr
    assert "2560" in done.stderr
