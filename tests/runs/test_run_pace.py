"""Open loop: requests go out when they are due, and latency counts from then."""

from pathlib import Path
from typing import Any

import pytest
from run_process import Run


def test_latency_counts_from_the_intended_time(run: Run) -> None:
    ran = run(
        *("--model", "slow", "-u", 1, "-t", "4s", "--output-tokens", 2),
        *("--arrivals", "constant", "--rate", 10),
    )
    assert ran.code == 0, ran.output
    ok = [row for row in ran.rows if row["outcome"] == "ok"]
    assert len(ok) >= 3
    for row in ran.rows:
        assert float(row["scheduled_s"]) == pytest.approx(int(row["request_id"]) / 10, abs=2e-3)
    last = max(ok, key=lambda row: int(row["request_id"]))
    waited_s = float(last["sent_s"]) - float(last["scheduled_s"])
    assert waited_s > 0.3, "one user cannot keep up with ten requests a second"
    assert float(last["ttft_ms"]) >= 1000 * waited_s


def test_the_cap_of_an_open_loop_is_there_from_its_start(run: Run) -> None:
    ran = run(
        *("--model", "slow", "-u", 20, "-t", "2s", "--output-tokens", 2),
        *("--arrivals", "constant", "--rate", 20),
    )
    assert ran.code == 0, ran.output
    early = [row for row in ran.rows if int(row["request_id"]) < 20]
    assert len(early) == 20, "due in the first second"
    spans = [(float(row["sent_s"]), float(row["end_s"])) for row in early]
    in_flight = max(sum(sent <= at < end for sent, end in spans) for at, _ in spans)
    assert in_flight >= 4, "with a user a second there were two"


def test_requests_due_but_never_sent_are_recorded(run: Run) -> None:
    ran = run(
        *("--model", "slow", "-u", 1, "-t", "3s", "--output-tokens", 2),
        *("--arrivals", "constant", "--rate", 20),
    )
    unsent = [row for row in ran.rows if not row["sent_s"]]
    assert unsent
    assert {row["outcome"] for row in unsent} == {"cancelled"}
    assert len(ran.rows) >= 20 * 2, "all that were due are accounted for"
    assert ran.code == 0, "what was cut off is no failure"


STOPPING = """
from locust import task
from locust.exception import StopTest

from kvswarm import ContextUser


class Stopper(ContextUser):
    @task
    async def ask(self):
        turn = await self.next_turn()
        if turn.request.index == 3:
            raise StopTest("enough")
        await self.send(turn)
"""


def test_a_task_may_end_the_test_of_an_open_loop_without_a_cap(run: Run, tmp_path: Path) -> None:
    (tmp_path / "stopping.py").write_text(STOPPING)
    ran = run(
        *("--model", "normal", "-t", "60s", "--output-tokens", 2),
        *("--arrivals", "constant", "--rate", 5),
        file=str(tmp_path / "stopping.py"),
    )
    assert "enough" in ran.output
    assert len(ran.rows) < 30
    assert ran.json("summary.json")["requests"] >= 3


MIXED = """
from locust import User, task

from kvswarm import ContextUser

def note(*words):
    with open({notes!r}, "a") as notes:
        print(*words, file=notes)


class Ours(ContextUser):
    async def on_start(self):
        self.extra = {{"stop": ["x"]}}
        note("started")

    def on_stop(self):
        note("stopped")

    @task
    async def ask(self):
        await self.send(await self.next_turn(), self.extra)


class Stranger(User):
    weight = 9

    @task
    def look(self):
        note("looked")
"""


@pytest.mark.parametrize("more", [(), ("--processes", 1)], ids=["one", "worker"])
def test_an_open_loop_without_a_cap_plays_our_users_from_their_start_to_their_stop(
    run: Run, tmp_path: Path, more: tuple[Any, ...]
) -> None:
    (tmp_path / "mixed.py").write_text(MIXED.format(notes=str(tmp_path / "notes")))
    ran = run(
        *("--model", "normal", "-t", "2s", "--output-tokens", 2),
        *("--arrivals", "constant", "--rate", 20, *more),
        file=str(tmp_path / "mixed.py"),
    )
    assert ran.code == 0, ran.output
    assert (tmp_path / "notes").read_text().split() == ["started", "stopped"]
    assert len(ran.rows) >= 20 * 2 - 2
    assert {row["outcome"] for row in ran.rows} == {"ok"}


FALLING = """
import time
from locust import LoadTestShape, task
from kvswarm import ContextUser


class Leaver(ContextUser):
    def on_stop(self):
        with open({notes!r}, "a") as notes:
            print(time.monotonic(), file=notes)

    @task
    async def ask(self):
        await self.send(await self.next_turn())


class Falling(LoadTestShape):
    def tick(self):
        run_s = self.get_run_time()
        return (4, 4) if run_s < 2 else (1, 4) if run_s < 8 else None
"""


def test_users_with_nothing_to_send_leave_an_open_loop_when_they_are_told_to(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "falling.py").write_text(FALLING.format(notes=str(tmp_path / "notes")))
    ran = run(
        *(
            "--model",
            "normal",
            "--output-tokens",
            2,
            "--arrivals",
            "constant",
            "--rate",
            "1:1,0.05",
        ),
        file=str(tmp_path / "falling.py"),
    )
    assert ran.code == 0, ran.output
    *early, last = map(float, (tmp_path / "notes").read_text().split())
    assert len(early) == 3
    assert last - max(early) > 3


def test_an_open_loop_sends_for_the_whole_run_time(run: Run) -> None:
    """Its first request is due half a second after the start, which is not taken off `-t`."""
    ran = run(
        *("--model", "normal", "-t", "2s", "--output-tokens", 2),
        *("--arrivals", "constant", "--rate", 20),
    )
    assert ran.code == 0, ran.output
    assert len(ran.rows) >= 20 * 2 - 2
    assert ran.json("run.json")["options"]["run_time"] == 2


@pytest.mark.parametrize("users", [("-u", 0), ()], ids=["asked for", "by default"])
def test_without_a_cap_requests_overlap_freely(run: Run, users: tuple[Any, ...]) -> None:
    ran = run(
        *("--model", "slow", *users, "-t", "3s", "--output-tokens", 4),
        *("--arrivals", "poisson", "--rate", 20, "--processes", 2),
    )
    assert ran.code == 0, ran.output
    facts = ran.json("run.json")
    assert (facts["users"], facts["options"]["num_users"]) == (0, 0)
    assert all(row["outcome"] == "ok" for row in ran.rows)
    edges = [(float(r["sent_s"]), 1) for r in ran.rows] + [
        (float(r["end_s"]), -1) for r in ran.rows
    ]
    in_flight = most = 0
    for _, step in sorted(edges):
        in_flight += step
        most = max(most, in_flight)
    assert most > 4
    assert "Traceback" not in ran.output
    ids = sorted(int(row["request_id"]) for row in ran.rows)
    # The workers share one sequence of arrivals; they stop a moment apart.
    settled = [index for index in ids if index < len(ids) - 5]
    assert settled == list(range(len(settled)))
