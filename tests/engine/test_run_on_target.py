"""`kvswarm run --target`: a swarm on a real engine that is started for it."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

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


def rows(out: Path, name: str = "requests.csv") -> list[dict[str, str]]:
    with (out / name).open(newline="") as file:
        return list(csv.DictReader(file))


def read(out: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((out / name).read_text()))


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def has_rows(out: Path, least: int) -> Callable[[], bool]:
    return lambda: (out / "requests.csv").is_file() and len(rows(out)) >= least


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def name(process: psutil.Process) -> str:
    return process.cmdline()[0].strip()


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


@contextmanager
def started(out: Path, *more: object, target: str = "vllm") -> Iterator[subprocess.Popen[str]]:
    """A run without an end, which has sent requests."""
    process = subprocess.Popen(
        command(out, *more, target=target),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        has_sent = has_rows(out, 4)
        wait_until(lambda: has_sent() or process.poll() is not None, START_TIMEOUT_S)
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        process.kill()


def test_a_killed_run_leaves_nothing_running(tmp_path: Path) -> None:
    """On the engine that starts soonest: what ends it is the same for all."""
    out = tmp_path / "run"
    with started(out, target="hf-continuous") as process:
        engines = family(process)
        engine = read(out, "run.json")["target"]["engine_pid"]
        assert engine in {each.pid for each in engines}
        process.kill()
        process.wait(timeout=40)
        wait_until(gone(engines), 30)
    assert len(rows(out)) >= 4


def test_a_killed_engine_ends_the_run_with_its_records(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out) as process:
        engines = family(process)
        assert {"VLLM::EngineCore", "VLLM::Worker"} <= {name(engine) for engine in engines}
        psutil.Process(read(out, "run.json")["target"]["engine_pid"]).kill()
        _, said = process.communicate(timeout=60)
        wait_until(gone(engines), 30)
    assert process.returncode == 3, said
    assert "vllm" in said
    assert "Traceback" not in said
    assert "ok" in {row["outcome"] for row in rows(out)}
    assert read(out, "run.json")["host_died"] is True


def test_lmcache_serves_what_the_engine_evicted_until_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # A busy machine must not make the run invalid.
    more = ("--contexts", 8, "--context-tokens", 900, "--l1-gb", 0.5, "--max-lag-ms", 60_000)
    with started(out, *more, target="vllm-lmcache") as process:
        services = family(process)
        assert {"VLLM::EngineCore", "VLLM::Worker"} <= {name(service) for service in services}
        pids = read(out, "run.json")["target"]["pids"]
        assert {pids["vllm"][0], pids["lmcache"][0]} <= {service.pid for service in services}
        wait_until(lmcache_is_seen(out), 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=40)
        wait_until(gone(services), 30)
    assert process.returncode == 0, said
    assert len(rows(out)) >= 4
    assert read(out, "run.json")["cache_state"] == "cold"
    summary = read(out, "summary.json")
    assert summary["failed"] == 0
    assert summary["server"]["external_prompt_tokens"] > 0
    assert summary["server"]["external_hit_rate"] > 0
    assert float(rows(out, "server_metrics.csv")[-1]["lmcache_rss_mb"]) > 50


def lmcache_is_seen(out: Path) -> Callable[[], bool]:
    """Whether the engine has had prompts from LMCache, which tells what it holds."""
    columns = ("external_prompt_tokens", "lmcache_l1_memory_usage_bytes")
    return lambda: any(
        all(float(sample[column] or 0) > 0 for column in columns)
        for sample in rows(out, "server_metrics.csv")
    )


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for the engine's sockets."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def test_serve_keeps_an_engine_until_ctrl_c(tmp_path: Path, temporary: Path) -> None:
    """Started anywhere, with the context scheduler in it and its metrics on the engine's page."""
    logs = tmp_path / "logs"
    serve = [*KVSWARM, "serve", "vllm-context", "--kv-tokens", "2560", "--logs", str(logs)]
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
        engines = family(process)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=40)
        wait_until(gone(engines), 30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert (logs / "vllm.log").is_file()
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
