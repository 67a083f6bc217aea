"""Swarms of several processes: one run directory, nothing lost in silence."""

import csv
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from run_process import (
    KVSWARM,
    TIMEOUT_S,
    HostProcess,
    Ran,
    Run,
    arguments,
    run_until,
    wait_until,
    workers_with_rows,
)

from loadgen.targets.hardware import free_ports


def test_locusts_statistics_have_every_request_of_every_worker(run: Run) -> None:
    ran = run(
        *("--model", "normal", "-u", 4, "-r", 4, "-t", "2s"),
        *("--output-tokens", 4, "--processes", 2),
    )
    assert ran.code == 0, ran.output
    with (ran.out / "locust_stats.csv").open(newline="") as file:
        rows = {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
    assert len(ran.rows) > 10
    assert rows["Aggregated"] == rows["TTFT (ms)"] == len(ran.rows)
    assert rows["ITL (ms)"] == 3 * len(ran.rows)


def test_users_of_several_workers_are_sessions_of_their_own(run: Run, host: HostProcess) -> None:
    ran = run(
        *("--model", "normal", "-u", 4, "-r", 4, "-t", "2s", "--processes", 2),
        *("--session-header", "x-session", "--session-by", "user"),
    )
    assert ran.code == 0, ran.output
    sessions = {name: {row["user"] for row in ran.rows if row["worker"] == name} for name in "01"}
    assert [len(users) for users in sessions.values()] == [2, 2]
    sent = [(key.lower(), value) for headers in host.headers() for key, value in headers.items()]
    told = {value for key, value in sent if key == "x-session"}
    assert told == sessions["0"] | sessions["1"]
    assert len(told) == 4


def test_a_lost_worker_fails_the_run(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = arguments(host.url, out, "--model", "normal", "-u", 2, "-r", 2, "-t", "12s")
    process = subprocess.Popen(
        [*command, "--processes", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until(lambda: len(host.prompts()) >= 4)
        psutil.Process(process.pid).children()[0].kill()
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    ran = Ran(process.returncode, output, out)
    summary = ran.json("summary.json")
    assert (summary["lost_workers"], summary["lost_share"]) == (1, 0.5), output
    assert "of 2 lost at" in output
    assert "a share of 50% of the requests is not sent" in output
    assert ran.code == 1
    assert {row["outcome"] for row in ran.rows} == {"ok"}


def test_a_run_whose_workers_are_all_gone_ends(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = arguments(host.url, out, "--model", "normal", "-u", 2, "-r", 2, "--processes", 2)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(host.prompts()) >= 4)
        for worker in psutil.Process(process.pid).children():
            worker.kill()
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, output
    assert Ran(1, output, out).json("summary.json")["lost_workers"] == 2


STARVED = """
import gevent
from gevent.monkey import get_original
from locust import events
from locustfiles.unordered import UnorderedUser

@events.test_start.add_listener
def starve(environment, **_):
    if hasattr(environment.runner, "worker_index"):
        gevent.spawn_later(1, get_original("time", "sleep"), 7)
"""


def test_workers_that_are_starved_for_seconds_lose_no_row(
    run: Run, host: HostProcess, tmp_path: Path
) -> None:
    (tmp_path / "starved.py").write_text(STARVED)
    ran = run(
        *("--model", "normal", "-u", 4, "-r", 4, "-t", "3s", "--processes", 2),
        file=str(tmp_path / "starved.py"),
    )
    assert ran.code in (0, 5), ran.output
    assert ran.json("summary.json")["lost_workers"] == 0, ran.output
    assert len(ran.rows) == len(host.prompts())


def test_two_runs_with_workers_at_once(host: HostProcess, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("one", "two")]
    options = ("--model", "normal", "-u", 2, "-r", 2, "--processes", 2)
    runs = run_until(
        lambda: all(workers_with_rows(out, 5) == {"0", "1"} for out in outs),
        *(host.url, outs, *options),
    )
    assert [ran.code for ran in runs] == [0, 0], runs
    assert sum(len(ran.rows) for ran in runs) == len(host.prompts())


def test_a_worker_that_joins_late_takes_no_user_away(host: HostProcess, tmp_path: Path) -> None:
    port, out, told = str(*free_ports(1)), tmp_path / "run", tmp_path / "told"
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", 1)
    join = [*KVSWARM, "run", "--worker", "--master-host", "127.0.0.1", "--master-port", port]
    load = ("--model", "normal", "-u", 4, "-r", 4, "--master")
    with ExitStack() as started:

        def start(command: list[str]) -> subprocess.Popen[bytes]:
            output = started.enter_context(told.open("ab"))
            process = subprocess.Popen(command, stdout=output, stderr=output)
            started.callback(process.kill)
            return process

        master = start(arguments(host.url, out, *load, *bind))
        wait_until(lambda: "0 of 1 workers are here: start each with" in told.read_text())
        start(join)
        wait_until(lambda: workers_with_rows(out, 8) == {"0"})
        waited = len(told.read_text())
        start(join)
        wait_until(lambda: "it takes no part in this run" in told.read_text())
        time.sleep(11)  # in which its users would go over to it
        master.send_signal(signal.SIGINT)
        assert master.wait(TIMEOUT_S) == 0, told.read_text()
        assert "0 of 1 workers are here" not in told.read_text()[waited:]
    rows = Ran(0, "", out).rows
    last_s = max(float(row["end_s"]) for row in rows)
    late = {row["user"] for row in rows if float(row["sent_s"]) > last_s - 1}
    assert len(late) == 4, told.read_text()


QUESTION = '{"qid": "1", "question": "What is it?", "doc_id": "text"}'
OTHER_USERS = """
from locustfiles.unordered import UnorderedUser

class Own(UnorderedUser):
    pass
"""


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("unordered", None, "corpus does not exist"),
        ("unordered", "Something else.", "corpus has other texts there"),
        ("own.py", "A text.", "it has no user class Own"),
    ],
)
def test_a_worker_that_cannot_do_its_part_ends_the_run(
    host: HostProcess, tmp_path: Path, file: str, text: str | None, said: str
) -> None:
    here, there, port = tmp_path / "here", tmp_path / "there", str(*free_ports(1))
    for folder, words in ((here, "A text."), (there, text)):
        folder.mkdir()
        if words:
            (folder / "corpus").mkdir()
            (folder / "corpus" / "text.txt").write_text(words)
            (folder / "corpus" / "questions.jsonl").write_text(QUESTION)
    (here / "own.py").write_text(OTHER_USERS)
    load = ("--model", "normal", "-u", 1, "-r", 1, "--corpus", "corpus", "--master")
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", 1)
    join = [*KVSWARM, "run", "--worker", "--master-host", "127.0.0.1", "--master-port", port]
    command = arguments(host.url, tmp_path / "run", *load, *bind, file=file)
    with subprocess.Popen(join, cwd=there) as worker:
        try:
            master = subprocess.run(
                command, cwd=here, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        finally:
            worker.kill()
    output = master.stdout + master.stderr
    assert master.returncode == 1, output
    (line,) = [line for line in output.splitlines() if "ending the run" in line]
    assert "cannot do its part" in line
    assert said in line
    assert Ran(1, output, tmp_path / "run").json("summary.json")["lost_workers"] == 1
    assert host.prompts() == []
