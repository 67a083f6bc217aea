"""The targets on `transformers serve`: runs, caches emptied by a restart, Ctrl-C at start."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from engine_runs import read, rows

from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.engine_api import ApiError, reset
from loadgen.targets.target import TargetSettings, start_target

pytestmark = [pytest.mark.engine, pytest.mark.timeout(700)]

KVSWARM = (sys.executable, "-m", "loadgen.cli.main")
TEXTS = ["The KV cache keeps what attention computed, so that a prefix is computed once. " * 20]
RUN_TIMEOUT_S = 300
TARGETS = ("hf-no-cache", "hf-cache", "hf-continuous")


def command(out: Path, target: str, *more: str) -> list[str]:
    small = ["--contexts", "2", "--context-tokens", "100", "--output-tokens", "5-9"]
    return [*KVSWARM, "run", "--target", target, "--out", str(out), *small, "-u", "2", *more]


def servers(word: str) -> list[psutil.Process]:
    """Processes with this word in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(word in each for each in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on each target."""
    out = tmp_path_factory.mktemp("runs") / "runs"
    # A busy machine must not make the run invalid.
    words = command(out, ",".join(TARGETS), "-t", "5s", "--max-lag-ms", "60000")
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=3 * RUN_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replies may end" not in done.stderr
    return out


@pytest.mark.parametrize("target", TARGETS)
def test_every_reply_has_the_length_asked_for(runs: Path, target: str) -> None:
    out = runs / target
    assert len(rows(out)) >= 2
    assert {row["outcome"] for row in rows(out)} == {"ok"}
    lengths = {int(row["output_tokens"]) for row in rows(out)}
    assert lengths <= set(range(5, 10))
    assert all(100 <= int(row["prompt_tokens"]) <= 200 for row in rows(out))
    generated = sum(int(row["output_tokens"]) for row in rows(out))
    summary = read(out, "summary.json")
    assert summary["output_tokens_per_s"] * summary["duration_s"] == pytest.approx(
        generated, rel=0.01
    )


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_server_does_not_tell_stays_unknown(runs: Path, target: str) -> None:
    summary = read(runs / target, "summary.json")
    assert summary["server"]["hit_rate"] is None
    assert "names no metrics" in summary["server_note"]
    assert {row["cached_tokens"] for row in rows(runs / target)} == {""}
    run = read(runs / target, "run.json")
    assert run["cache_state"] == "cold"
    assert "min_new_tokens" in run["target"]["body"]["generation_config"]


async def test_paged_blocks_are_gone_after_a_restart(tmp_path: Path) -> None:
    model = build_model(tmp_path / "tiny", "tiny", TEXTS)
    settings = TargetSettings(str(model))
    async with start_target(load_catalog()["hf-continuous"], settings, tmp_path) as target:
        before = target.facts()["engine_pid"]
        assert await target.make_cold(touched=False) == "cold"
        assert target.facts()["engine_pid"] == before
        with pytest.raises(ApiError, match="answered 403"):
            await reset(f"{target.url}/reset")
        assert await target.make_cold() == "cold"
        assert target.facts()["engine_pid"] != before
        target.check()


@pytest.mark.parametrize("wait_s", [0.0, 4.0])
def test_ctrl_c_at_the_start_leaves_nothing_running(tmp_path: Path, wait_s: float) -> None:
    """`wait_s` after the server's process began."""
    model = build_model(tmp_path / "tiny", "tiny", TEXTS)
    words = command(tmp_path / "run", "hf-continuous", "--model", str(model))
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "engine" / "transformers.log").is_file():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert servers(str(model)) == []
