"""`--metrics-port`: the page of a running swarm, with workers, in the web UI, refusals."""

import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from run_process import KVSWARM, HostProcess, Ran, Run, arguments, wait_until

from loadgen.targets.hardware import free_ports

EXPORTED = re.compile(r"metrics for Prometheus at (http://127\.0\.0\.1:\d+)/metrics")


@contextmanager
def exporting(command: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process and where it says that its exporter is."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until(lambda: EXPORTED.search(log.read_text()) is not None)
        found = EXPORTED.search(log.read_text())
        assert found is not None
        yield process, found[1]
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, form: dict[str, object] | None = None) -> bytes:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(url, data, timeout=10) as answer:
        return bytes(answer.read())


def metrics(url: str) -> dict[str, float]:
    """The page's samples by name and label values."""
    families = text_string_to_metric_families(ask(f"{url}/metrics").decode())
    return {
        " ".join([each.name, *each.labels.values()]): each.value
        for family in families
        for each in family.samples
    }


@pytest.mark.parametrize(("extra", "processes"), [((), {"0"}), (("--processes", 2), {"0", "1"})])
def test_the_page_of_a_run(
    host: HostProcess, tmp_path: Path, extra: tuple[object, ...], processes: set[str]
) -> None:
    out = tmp_path / "run"
    swarm = ("--model", "cached", "-u", 4, "-r", 4, "-t", "60s", "--output-tokens", 4)
    command = arguments(host.url, out, *swarm, "--metrics-port", 0, *extra)
    with exporting(command, tmp_path / "log") as (process, url):
        wait_until(lambda: metrics(url)["kvswarm_requests_total ok"] >= 20)
        wait_until(lambda: clients(metrics(url)) == processes)
        wait_until(lambda: metrics(url)["kvswarm_users"] == 4)
        page = metrics(url)
        assert json.loads(ask(f"{url}/targets")) == [], "this host has no /metrics"
        listening = [each for each in family(process) if each.status == psutil.CONN_LISTEN]
        assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
    ok = page["kvswarm_requests_total ok"]
    assert page["kvswarm_run_state running"] == 1
    assert page["kvswarm_prompt_tokens_total"] == 100 * ok
    assert page["kvswarm_cached_prompt_tokens_total"] == 60 * ok
    assert page["kvswarm_output_tokens_total"] == 4 * ok
    assert page["kvswarm_inter_token_latency_seconds_count"] == 3 * ok
    assert page["kvswarm_e2e_request_latency_seconds_bucket +Inf"] == ok
    ran = Ran(0, "", out)
    assert ok <= sum(row["outcome"] == "ok" for row in ran.rows)


def clients(page: dict[str, float]) -> set[str]:
    names = (name.split() for name in page if name.startswith("kvswarm_client_cpu_cores"))
    return {process for _, process in names}


def family(process: subprocess.Popen[bytes]) -> list[Any]:
    leader = psutil.Process(process.pid)
    return [each for one in (leader, *leader.children(True)) for each in one.net_connections()]


def test_a_port_that_is_taken_ends_it_before_anything_is_sent(host: HostProcess, run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = run("--model", "normal", "-u", 1, "-t", "1s", "--metrics-port", port)
    assert ran.code == 2
    (line,) = ran.output.splitlines()
    assert f"cannot listen on 127.0.0.1:{port} (address already in use)" in line
    assert host.prompts() == []


def test_no_counter_falls_over_resets_and_swarms(host: HostProcess, tmp_path: Path) -> None:
    (port,), out = free_ports(1), str(tmp_path / "runs")
    web = f"http://127.0.0.1:{port}"
    ui = [*KVSWARM, "ui", "unordered", "--host", host.url, "--out", out, "--web-port", str(port)]
    command = [*ui, "--model", "normal", "--output-tokens", "4", "--metrics-port", "0"]
    with exporting(command, tmp_path / "log") as (_, url):
        assert metrics(url)["kvswarm_run_state idle"] == 1
        start(web, host)
        wait_until(lambda: ok(url) >= 10)
        before = counters(url)
        ask(f"{web}/stats/reset", {})
        assert_not_below(counters(url), before)
        ask(f"{web}/stop", {})
        wait_until(lambda: metrics(url)["kvswarm_run_state idle"] == 1)
        before = counters(url)
        start(web, host)
        assert_not_below(counters(url), before)
        wait_until(lambda: ok(url) >= before["kvswarm_requests_total ok"] + 5)


def start(web: str, host: HostProcess) -> None:
    form = {"user_count": 2, "spawn_rate": 2, "host": host.url, "model": "normal"}
    started = ask(f"{web}/swarm", form)
    assert json.loads(started)["success"], started


def ok(url: str) -> float:
    return metrics(url)["kvswarm_requests_total ok"]


def counters(url: str) -> dict[str, float]:
    pattern = re.compile(r"\w+_(total|bucket|count|sum)( |$)")
    return {name: value for name, value in metrics(url).items() if pattern.match(name)}


def assert_not_below(later: dict[str, float], earlier: dict[str, float]) -> None:
    assert {name for name, value in earlier.items() if later[name] < value} == set()
