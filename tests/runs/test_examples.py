"""The examples, each run as its docstring says, but shorter and against a small host."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from run_process import TIMEOUT_S, HostProcess, Ran, Run, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "locustfiles" / "examples"
FOUR = ("-u", 4, "-r", 4, "-t", "2s")
OTHERS = {"own_client", "ci_workflow"}
"""Not a `kvswarm run` of one file: tests of their own run them."""


def batches(ran: Ran, host: HostProcess) -> None:
    rows = ran.csv("batches.csv")
    assert [(row["requests"], row["outcome"]) for row in rows] == [("12", "ok")] * 3
    assert len(re.findall(r"^batch \d: \d\.\d\d s$", ran.output, re.M)) == 3


def load_shape(ran: Ran, host: HostProcess) -> None:
    users = {row["user"] for row in ran.rows}
    early = {row["user"] for row in ran.rows if float(row["sent_s"]) < 0.8}
    assert (len(early), len(users)) == (2, 8)


def mixed_users(ran: Ran, host: HostProcess) -> None:
    users = {row["user"]: row["user"].partition("-")[0] for row in ran.rows}
    assert sorted(users.values()) == ["Asker", "Asker", "Asker", "Writer"]
    tokens = {(users[row["user"]], row["output_tokens"]) for row in ran.rows}
    assert {("Asker", "4"), ("Writer", "32")} <= tokens


def open_loop(ran: Ran, host: HostProcess) -> None:
    options = ran.json("run.json")["options"]
    assert (options["arrivals"], options["rate"], options["zipf"]) == ("poisson", "5:30,20", 1.0)


def own_headers(ran: Ran, host: HostProcess) -> None:
    sent = {(each.get("X-Tenant"), each.get("Authorization")) for each in host.headers()}
    assert sent == {("examples", "Bearer secret")}
    assert not [file for file in ran.out.iterdir() if "secret" in file.read_text()]


def own_prompt(ran: Ran, host: HostProcess) -> None:
    assert all(prompt.endswith("\nAnswer in one word.") for prompt in host.prompts())


def own_report(ran: Ran, host: HostProcess) -> None:
    contexts = {row["context_id"] for row in ran.rows}
    slow = re.findall(r"^slow: (\S+), \d+ ms$", ran.output, re.M)
    assert len(slow) == 3
    assert set(slow) <= contexts


def think_time(ran: Ran, host: HostProcess) -> None:
    for user in {row["user"] for row in ran.rows}:
        own = [row for row in ran.rows if row["user"] == user]
        assert all(float(b["sent_s"]) - float(a["end_s"]) > 0.45 for a, b in pairwise(own))


def two_models(ran: Ran, host: HostProcess) -> None:
    assert {body["model"] for body in host.bodies()} == {"normal", "cached"}
    assert {row["user"].partition("-")[0] for row in ran.rows} == {"FirstModel", "SecondModel"}
    cached = {(row["user"][:5], row["cached_tokens"]) for row in ran.rows if row["outcome"] == "ok"}
    assert cached == {("First", ""), ("Secon", "60")}


CHECKS: dict[Callable[[Ran, HostProcess], None], tuple[object, ...]] = {
    batches: ("-u", 2, "-r", 2, "--batches", 3),
    load_shape: (),
    mixed_users: FOUR,
    open_loop: ("-u", 0, "-t", "3s"),
    own_headers: FOUR,
    own_prompt: FOUR,
    own_report: FOUR,
    think_time: FOUR,
    two_models: (*FOUR, "--second-model", "cached"),
}


def test_every_example_is_run_here() -> None:
    names = {path.stem for path in EXAMPLES.glob("[a-z]*")}
    assert names == {check.__name__ for check in CHECKS} | OTHERS
    assert len(names) >= 10


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_it_is_run(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 50
    command = rf"^    (kvswarm run|locust -f) locustfiles/examples/{path.name} "
    assert re.search(command, text.split('"""')[1], re.M)


@pytest.mark.parametrize(
    ("check", "options"), CHECKS.items(), ids=[check.__name__ for check in CHECKS]
)
def test_an_example(
    check: Callable[[Ran, HostProcess], None],
    options: tuple[object, ...],
    run: Run,
    host: HostProcess,
) -> None:
    file = str(EXAMPLES / f"{check.__name__}.py")
    ran = run(*("--model", "normal", *options), file=file, env={"API_KEY": "secret"})
    assert ran.code == 0, ran.output
    assert len([row for row in ran.rows if row["outcome"] == "ok"]) > 3
    check(ran, host)


def test_own_client(host: HostProcess) -> None:
    file, before = EXAMPLES / "own_client.py", len(host.listed())
    options = ("--host", host.url, "--headless", "-u", "2", "-r", "2", "--only-summary")
    command = [sys.executable, "-m", "locust", "-f", file, *options]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running:
        try:
            wait_until(lambda: len(host.listed()) - before > 6)
            running.send_signal(signal.SIGTERM)
            _, said = running.communicate(timeout=TIMEOUT_S)
        finally:
            running.kill()
    assert running.returncode == 0, said
    (requests, failures) = re.findall(r"^GET +/v1/models +(\d+) +(\d+)\(", said, re.M)[0]
    assert int(requests) > 3
    assert failures == "0"


@pytest.mark.parametrize(
    ("model", "code", "verdict"),
    [("steady", 0, "| **passed** |"), ("flaky", 1, "`errors<=0.1%` | **broken** |")],
)
def test_ci_workflow(
    host: HostProcess, tmp_path: Path, model: str, code: int, verdict: str
) -> None:
    """Failed requests are for its last step to judge, too."""
    workflow = yaml.safe_load((EXAMPLES / "ci_workflow.yml").read_text())
    install, *steps = [step["run"] for step in workflow["jobs"]["compare"]["steps"]]
    assert install.startswith("pip install")
    (tmp_path / "kvswarm").write_text(f'#!/bin/sh\nexec {sys.executable} -m kvswarm "$@"\n')
    (tmp_path / "kvswarm").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    of_run = {"OLD": host.url, "NEW": host.url, "LOCUST_MODEL": model, "PATH": path}
    of_run["LOCUST_MAX_LAG_MS"] = "60000"  # of a busy machine the example is not to blame
    # In an open loop the requests are as many on a busy machine as on any other, and what this
    # model takes is mostly its own: the gate has enough to decide on.
    many = "-u 0 --arrivals constant --rate 60 -t 2s"
    script = "\n".join(steps).replace("1 2 3", "1").replace("-u 8 -r 8 -t 1m", many)
    assert script.count(many) == 2
    # Both sides are one host, but on a busy machine one may be slower than the other.
    script = script.replace("+10%", "+900%")
    for _ in range(2):  # the second job finds what the first has left
        done = subprocess.run(
            ["bash", "-euc", script],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **of_run},
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert verdict in done.stdout
        assert sorted(each.name for each in tmp_path.glob("old?")) == ["old1"]
        (tmp_path / "old1").rename(tmp_path / "old4")
