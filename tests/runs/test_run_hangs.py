"""Hosts that stop answering: what they left unanswered is late, and a run says so."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import fake_engine
import psutil
from run_process import KVSWARM, TIMEOUT_S, HostProcess, Ran, Run, arguments, wait_until

OPEN = ("--arrivals", "constant", "--rate", 40, "-u", 40, "--processes", 2, "--slo", "ttft_ms<=500")
ENDS = ("--drain", 1, "-t", "3s", "--max-silence", 2)


def metric(ran: Ran, name: str) -> dict[str, Any]:
    return dict(ran.json("summary.json")["metrics"][name])


def test_what_a_silent_host_left_unanswered_is_late_everywhere(run: Run) -> None:
    """It goes on answering for /metrics, by 404, and so has not died."""
    ran = run("--model", "silent", "--output-tokens", 4, *OPEN, *ENDS)
    summary = ran.json("summary.json")
    age_s = {(row["outcome"], float(row["end_s"]) - float(row["scheduled_s"])) for row in ran.rows}
    late = [row for row in ran.rows if row["late"]]
    ok = summary["outcomes"]["ok"]
    assert ran.code == 1, ran.output
    assert {row["outcome"] for row in late} == {"timeout"}
    assert {row["slo_met"] for row in late} == {"false"}
    assert len(late) == summary["late"] == summary["failed"] >= 20
    assert min(age for outcome, age in age_s if outcome == "timeout") > 0.5
    assert max((age for outcome, age in age_s if outcome == "cancelled"), default=0.0) <= 0.5
    assert summary["goodput_share"] <= ok / (ok + len(late))
    assert metric(ran, "ttft_ms")["count"] == ok + len(late)
    assert metric(ran, "ttft_ms")["p95"] > 1000
    assert "lower bounds" in ran.output


def test_a_reply_that_stalls_after_its_first_token_is_late(run: Run) -> None:
    ran = run("--model", "stalling", "-u", 8, "-r", 8, *ENDS)
    late = [row for row in ran.rows if row["late"]]
    assert len(late) == 8
    assert all(float(row["ttft_ms"]) < 1000 for row in late)
    assert metric(ran, "e2e_ms")["max"] > 1500 > metric(ran, "ttft_ms")["max"]
    assert metric(ran, "itl_ms")["max"] > 1500
    assert ran.code == 1


def test_what_outlasts_the_stop_timeout_of_locust_is_late_as_by_ours(run: Run) -> None:
    ran = run("--model", "silent", "-u", 8, "-r", 8, "-t", 3, "--stop-timeout", 1)
    late = [row for row in ran.rows if row["late"]]
    assert (len(late), ran.json("summary.json")["failed"], ran.code) == (8, 8, 1), ran.output
    assert ran.json("run.json")["options"]["drain"] == 1.0


def test_what_waited_for_all_of_its_own_time_counts_with_it(run: Run) -> None:
    ran = run("--model", "silent", "-u", 8, "-r", 8, "--timeout", 1, *ENDS)
    summary = ran.json("summary.json")
    timeouts = [row for row in ran.rows if row["outcome"] == "timeout"]
    assert len(timeouts) == summary["late"] >= 8
    assert {row["late"] for row in timeouts} == {"true"}
    assert metric(ran, "ttft_ms")["count"] == summary["outcomes"]["ok"] + len(timeouts)
    assert metric(ran, "ttft_ms")["max"] >= 1000
    assert ran.code == 1


def test_a_host_that_answers_nothing_at_all_ends_the_run(host: HostProcess, tmp_path: Path) -> None:
    begun_s = time.monotonic()
    ran = stopped(host, tmp_path / "run", "--max-silence", 2, "--processes", 2)
    assert ran.code == 3, ran.output
    assert time.monotonic() - begun_s < TIMEOUT_S, "neither -t nor --drain is waited for"
    assert (
        f"kvswarm: the host {host.url} is not answering: nothing for 2 s, neither to requests nor"
        " at /metrics: ending the run\n"
    ) in ran.output
    assert ran.json("run.json")["host_died"] is True
    assert len(ran.rows) == ran.json("summary.json")["requests"]
    assert [row["outcome"] for row in ran.rows if row["late"]] == ["timeout"] * 4
    assert "Traceback" not in ran.output


def test_whoever_ends_the_process_waits_for_the_run_to_be_closed(
    host: HostProcess, tmp_path: Path
) -> None:
    """As `-t` may as well: the last look at a silent host takes two seconds."""
    load = ("--model", "normal", "-u", 4, "-r", 4, "-t", "10m", "--max-silence", 2)
    process = subprocess.Popen(
        arguments(host.url, tmp_path / "run", *load),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        wait_until(lambda: len(host.prompts()) >= 40)
        host.process.send_signal(signal.SIGSTOP)
        said = ""
        while "ending the run" not in said and (line := process.stdout.readline()):
            said += line
        time.sleep(2)  # what is in flight is cut off first
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=TIMEOUT_S)[0]
    finally:
        process.kill()
    ran = Ran(process.returncode, said, tmp_path / "run")
    assert "Error" not in said
    assert ran.code == 3, said
    assert len(ran.rows) == ran.json("summary.json")["requests"] >= 40


KEPT = """
[services.kept]
role = "cache"
argv = ["{python}", "ENGINE", "--port", "{port}"]
ready = "/health"
metrics = "/metrics"
reset = "/reset"
counters = "lmcache"

[targets.two]
services = ["kept", "engine"]
""".replace("ENGINE", fake_engine.__file__)


def test_a_cache_behind_an_engine_that_answers_no_more_ends_the_run(tmp_path: Path) -> None:
    """Its engine goes on, but is no longer what was asked for."""
    targets, out = tmp_path / "a.toml", tmp_path / "run"
    targets.write_text(fake_engine.CATALOG + KEPT)
    load = ("--model", "m", "--contexts", 1, "--output-tokens", 2, "-u", 1, "-t", "10m")
    command = ("run", "unordered", "--target", "two", "--targets", targets, "--out", out, *load)
    process = subprocess.Popen(
        [*KVSWARM, *map(str, command), "--max-silence", "2", "--max-lag-ms", "60000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    cache = None
    try:
        wait_until(lambda: (out / "requests.csv").is_file() and len(Ran(0, "", out).rows) > 5)
        (pid,) = Ran(0, "", out).json("run.json")["target"]["pids"]["kept"]
        cache = psutil.Process(pid)
        cache.suspend()
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 3, output
    said = "the cache behind the engine is not answering: nothing for 2 s: ending the run\n"
    assert said in output
    assert len(Ran(3, output, out).rows) == Ran(3, output, out).json("summary.json")["requests"]
    assert not cache.is_running()


def stopped(host: HostProcess, out: Path, *more: object) -> Ran:
    """A run of four users whose host is stopped, as by SIGSTOP, after a few replies."""
    load = ("--model", "normal", "-u", 4, "-r", 4, "-t", "10m", "--drain", 300)
    command = arguments(host.url, out, *load, *more)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(host.prompts()) >= 40)
        host.process.send_signal(signal.SIGSTOP)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return Ran(process.returncode, output, out)
