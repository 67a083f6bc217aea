"""How runs end: outcomes, exit codes, signals, hosts that die."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from run_process import TIMEOUT_S, HostProcess, Ran, Run, arguments, run_until, wait_until


def small(*more: object) -> tuple[object, ...]:
    return ("-u", 2, "-r", 2, "-t", "2s", "--output-tokens", 4, *more)


@pytest.mark.parametrize(
    ("model", "outcome"),
    [("storm", "http_error"), ("truncating", "truncated"), ("malformed", "malformed")],
)
def test_a_failing_host_fails_the_run(run: Run, model: str, outcome: str) -> None:
    ran = run(*small("--model", model))
    assert ran.code == 1
    assert {row["outcome"] for row in ran.rows} == {outcome}
    assert ran.json("summary.json")["outcomes"] == {"ok": 0, outcome: len(ran.rows)}
    assert ran.json("summary.json")["metrics"]["ttft_ms"]["count"] == 0
    assert outcome in ran.output
    assert "Traceback" not in ran.output
    assert len(ran.rows) <= 20, "users whose requests fail at once back off"


@pytest.mark.parametrize("processes", [(), ("--processes", 2)])
def test_a_good_run_that_its_time_ends_prints_no_error(
    run: Run, processes: tuple[object, ...]
) -> None:
    """Locust took users that had left meanwhile for broken, and said so for each."""
    many = ("-u", 300, "-r", 300, "-t", "3s", "--output-tokens", 2, *processes)
    ran = run("--model", "normal", *many)
    assert ran.code == 0, ran.output
    assert len(ran.rows) > 300
    assert "ERROR" not in ran.output
    assert "proper args" not in ran.output


def test_a_task_that_leaves_python_ends_no_swarm(run: Run, tmp_path: Path) -> None:
    leaving = "    @task\n    async def leave(self):\n        raise SystemExit('bye')\n"
    head = "from locust import task\nfrom kvswarm import ContextUser\nclass Leaving(ContextUser):\n"
    (tmp_path / "leaving.py").write_text(head + leaving)
    ran = run(*small("--model", "normal"), file=str(tmp_path / "leaving.py"))
    assert ran.code == 1
    assert re.search(r"^\d+ x exception in a user: bye$", ran.output, re.M)
    assert ran.json("summary.json")["outcomes"] == {"ok": 0}


@pytest.mark.parametrize("field", ["n", "stream"])
def test_a_body_that_would_change_what_is_measured_is_not_sent(
    run: Run, tmp_path: Path, field: str
) -> None:
    head = "from locust import task\nfrom kvswarm import ContextUser\nclass Odd(ContextUser):\n"
    sending = f"self.send(await self.next_turn(), body_extra={{{field!r}: 2}})"
    sends = f"    @task\n    async def ask(self):\n        await {sending}\n"
    (tmp_path / "odd.py").write_text(head + sends)
    ran = run(*small("--model", "normal"), file=str(tmp_path / "odd.py"))
    assert (ran.code, ran.rows) == (1, [])
    assert f"body_extra sets '{field}', which the client sets itself: leave it out" in ran.output


BLOCKING = """
import time
from locust import task
from kvswarm import ContextUser

class Blocking(ContextUser):
    @task
    async def send_once_and_block(self):
        await self.send(await self.next_turn())
        {blocks}
"""


@pytest.mark.parametrize(
    ("blocks", "ended_by", "processes"),
    [
        ("time.sleep(3600)", "time", ()),
        ("time.sleep(3600)", "SIGTERM", ("--processes", "2")),
        ("while True: pass", "SIGINT", ()),
    ],
)
def test_a_task_that_blocks_the_loop_ends_with_the_run_which_has_failed(
    host: HostProcess, tmp_path: Path, blocks: str, ended_by: str, processes: tuple[str, ...]
) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING.format(blocks=blocks))
    ends = ("-t", "3s", "--drain", 2) if ended_by == "time" else ()
    load = ("--model", "normal", "-u", 2, "-r", 2, *ends, *processes)
    out = tmp_path / "run"
    command = arguments(host.url, out, *load, file=str(tmp_path / "blocking.py"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: bool(host.prompts()))
        time.sleep(1)
        if ended_by != "time":
            process.send_signal(signal.Signals[ended_by])
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    ran = Ran(process.returncode, output, out)
    assert ran.code == 1, output
    line = BLOCKING.splitlines().index("        {blocks}") + 1
    assert (
        f"send_once_and_block ({tmp_path / 'blocking.py'}:{line}) blocks the event loop" in output
    )
    assert "Traceback" not in output
    assert "ok" in {row["outcome"] for row in ran.rows}
    assert len(ran.rows) == ran.json("summary.json")["requests"]


def test_an_open_loop_does_not_back_off(run: Run) -> None:
    ran = run("--model", "storm", "--arrivals", "constant", "--rate", 40, "-u", 0, "-t", "2s")
    assert len(ran.rows) >= 60
    assert {row["outcome"] for row in ran.rows} == {"http_error"}


@pytest.mark.parametrize(("allowed", "code"), [("0", 1), ("50", 0)])
def test_max_failures_decides(run: Run, allowed: str, code: int) -> None:
    ran = run(*small("--model", "flaky", "--max-failures", allowed))
    assert {row["outcome"] for row in ran.rows} == {"ok", "http_error"}
    assert ran.code == code


def test_what_is_in_flight_at_the_end_is_cut_after_the_drain(run: Run) -> None:
    ran = run(*small("--model", "endless", "--drain", "0.5"))
    assert [row["outcome"] for row in ran.rows] == ["cancelled"] * 2
    assert all(row["first_token_s"] and row["end_s"] for row in ran.rows)
    assert ran.json("summary.json")["failed"] == 0
    assert ran.code == 1, "a run in which nothing succeeded has not passed"


STRANGER = """
import time
from locust import User, constant, task
from locustfiles.unordered import UnorderedUser

class Stranger(User):
    wait_time = constant(0.02)

    @task
    def tick(self):
        with open({path!r}, "a") as file:
            file.write(f"{{time.time()}}\\n")
"""


def test_who_sends_nothing_of_ours_does_not_go_on_while_replies_are_waited_for(
    run: Run, tmp_path: Path
) -> None:
    ticks, locustfile = tmp_path / "ticks", tmp_path / "mixed.py"
    locustfile.write_text(STRANGER.format(path=str(ticks)))
    ran = run(*small("--model", "endless", "--drain", "4"), file=str(locustfile))
    assert [row["outcome"] for row in ran.rows] == ["cancelled"]
    last_s = max(map(float, ticks.read_text().split()))
    assert ran.json("run.json")["start_unix_s"] + float(ran.rows[0]["end_s"]) - last_s > 2.5


@pytest.mark.parametrize("processes", [(), ("--processes", 2)])
def test_locusts_report_knows_who_its_users_were(
    run: Run, tmp_path: Path, processes: tuple[object, ...]
) -> None:
    report = tmp_path / "report.html"
    run("--model", "normal", "-u", 2, "-r", 2, "-t", "3s", "--html", report, *processes)
    ratio = re.search(r'"per_class": \{"UnorderedUser": \{"ratio": ([\d.]+)', report.read_text())
    assert ratio is not None
    assert float(ratio[1]) == 1.0


def test_ctrl_c_while_replies_are_waited_for_loses_nothing(
    host: HostProcess, tmp_path: Path
) -> None:
    def waits_for_replies() -> bool:
        wait_until(lambda: len(host.prompts()) == 2)
        time.sleep(4)  # two seconds of load are over
        return True

    drain = ("--drain", 10 * TIMEOUT_S)
    (ran,) = run_until(
        waits_for_replies, host.url, [tmp_path / "run"], *small("--model", "endless", *drain)
    )
    assert "Traceback" not in ran.output
    assert [row["outcome"] for row in ran.rows] == ["cancelled"] * 2
    assert ran.json("run.json")["interrupted"] is True
    assert ran.code == 1


def test_a_request_has_a_timeout(run: Run) -> None:
    ran = run(*small("--model", "endless", "--timeout", "0.5"))
    assert "timeout" in {row["outcome"] for row in ran.rows}
    assert ran.code == 1


def test_cached_tokens_are_summed_up(run: Run) -> None:
    ran = run(*small("--model", "cached"))
    assert ran.code == 0, ran.output
    assert {row["cached_tokens"] for row in ran.rows} == {"60"}
    assert ran.json("summary.json")["cached_share"] == pytest.approx(0.6)
    assert ran.json("run.json")["interrupted"] is False


def test_a_saturated_client_is_no_valid_run(run: Run) -> None:
    ran = run("--model", "normal", "-u", 2, "-r", 2, "-t", "4s", "--max-lag-ms", "0.0001")
    assert ran.code == 5
    assert ran.json("summary.json")["client_saturated"] is True
    assert "SATURATED" in ran.output


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has(
    host: HostProcess, tmp_path: Path, number: signal.Signals, processes: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    command = arguments(host.url, out, "--model", "slow", "-u", 2, "-r", 2, *processes)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(host.prompts()) >= 2)
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    ran = Ran(process.returncode, output, out)
    assert "Traceback" not in output
    assert len(ran.rows) == len(host.prompts())
    assert "cancelled" in {row["outcome"] for row in ran.rows}
    assert ran.json("summary.json")["failed"] == 0
    assert ran.json("run.json")["interrupted"] is True


def test_a_second_interrupt_loses_nothing(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = arguments(host.url, out, "--model", "slow", "-u", 2, "-r", 2)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(host.prompts()) >= 2)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    ran = Ran(process.returncode, output, out)
    assert "Traceback" not in output
    assert len(ran.rows) == len(host.prompts())
    assert ran.json("summary.json")["outcomes"]["cancelled"] == 2


def test_a_host_that_dies_ends_the_run(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = arguments(host.url, out, "--model", "normal", "-u", 2, "-r", 2, "-t", "60s")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(host.prompts()) >= 4)
        host.process.kill()
        output, _ = process.communicate(timeout=40)
    finally:
        process.kill()
    ran = Ran(process.returncode, output, out)
    assert ran.code == 3, output
    assert "ok" in {row["outcome"] for row in ran.rows}
    assert ran.json("run.json")["host_died"] is True


def test_a_killed_run_loses_at_most_the_last_second(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        arguments(host.url, out, "--model", "normal", "-u", 2, "-r", 2, "--output-tokens", 4),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(host.prompts()) >= 20)
        written = len(host.prompts())
        time.sleep(2)
    finally:
        process.kill()
        process.wait()
    ran = Ran(-9, "", out)
    assert len(ran.rows) >= written - 2
    assert ran.json("run.json")["model"] == "normal"


@pytest.mark.parametrize(("to", "code"), [("full disk", 1), ("nobody", 0)])
def test_a_run_whose_report_cannot_be_told_is_complete(
    host: HostProcess, tmp_path: Path, to: str, code: int
) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as gone:
        gone.wait()
        assert gone.stdin is not None
        with Path("/dev/full").open("wb") if to == "full disk" else gone.stdin as stdout:
            done = subprocess.run(
                arguments(host.url, out, *small("--model", "normal")),
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ("kvswarm: cannot write to stdout" in done.stderr) is (to == "full disk")
    assert (out / "summary.json").is_file()
