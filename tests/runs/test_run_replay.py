"""Recorded traffic is sent as it was recorded, and the run ends with it."""

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from run_process import Ran, Run

TRACE = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 7]},
    {"timestamp": 500, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]},
    {"timestamp": 2500, "input_length": 600, "output_length": 2, "hash_ids": [0, 12]},
    {"timestamp": 2600, "input_length": 300, "output_length": 4, "hash_ids": [3]},
]
CONVERSATIONS = [
    {
        "id": name,
        "conversations": [
            {"from": who, "value": f"{name} {turn}"}
            for turn in range(4)
            for who in ("human", "gpt")
        ],
    }
    for name in ("ada", "bob", "cy")
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return kept(tmp_path / "trace.jsonl", TRACE)


def kept(path: Path, items: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def by_number(ran: Ran) -> list[dict[str, str]]:
    return sorted(ran.rows, key=lambda row: int(row["request_id"]))


@pytest.mark.parametrize("more", [("-u", 0), ("-u", 3, "--processes", 2)], ids=["one", "workers"])
def test_a_trace_is_sent_at_its_times_and_ends_the_run(
    run: Run, trace: Path, more: tuple[object, ...]
) -> None:
    ran = run("--model", "normal", "--trace", trace, "--trace-speed", 2, *more, file="replay")
    assert ran.code == 0, ran.output
    assert "replaying 4 requests" in ran.output
    rows = by_number(ran)
    assert [float(row["scheduled_s"]) for row in rows] == pytest.approx(
        [0, 0.25, 1.25, 1.3], abs=2e-3
    )
    assert [row["output_tokens"] for row in rows] == ["5", "9", "2", "4"]
    assert [row["context_id"] for row in rows] == ["block-7", "block-7", "block-12", "block-3"]
    assert {row["outcome"] for row in rows} == {"ok"}
    digest = hashlib.sha256(trace.read_bytes()).hexdigest()
    assert ran.json("run.json")["trace_sha256"] == digest


@pytest.mark.parametrize("more", [(), ("--processes", 2)], ids=["one", "workers"])
def test_turns_of_a_conversation_wait_for_each_other(
    run: Run, tmp_path: Path, more: tuple[object, ...]
) -> None:
    path = kept(tmp_path / "talks.jsonl", CONVERSATIONS)
    closed = ("--arrivals", "closed", "-u", 6, "-r", 6)
    ran = run("--model", "slow", "--trace", path, *closed, *more, file="replay")
    assert ran.code == 0, ran.output
    ended_s: dict[str, float] = defaultdict(float)
    for row in by_number(ran):
        assert float(row["sent_s"]) >= ended_s[row["context_id"]]
        ended_s[row["context_id"]] = float(row["end_s"])
    assert set(ended_s) == {"ada", "bob", "cy"}
    assert len(ran.rows) == 12


def test_a_task_may_leave_turns_out(run: Run, tmp_path: Path) -> None:
    path = kept(tmp_path / "talks.jsonl", CONVERSATIONS)
    locustfile = tmp_path / "choosy.py"
    locustfile.write_text(
        "from locust import task\n"
        "from kvswarm import ContextUser\n"
        "class Choosy(ContextUser):\n"
        "    @task\n"
        "    async def ask(self):\n"
        "        turn = await self.next_turn()\n"
        "        if turn.request.index % 2:\n"
        "            await self.send(turn)\n"
    )
    ran = run("--model", "normal", "--trace", path, "-u", 2, "-r", 2, file=locustfile)
    assert ran.code == 0, ran.output
    assert {int(row["request_id"]) for row in ran.rows} == {1, 3, 5, 7, 9, 11}


def test_a_history_grows_by_what_was_said(run: Run, host: object, tmp_path: Path) -> None:
    path = kept(tmp_path / "talks.jsonl", CONVERSATIONS[:1])
    ran = run("--model", "normal", "--trace", path, "--arrivals", "closed", "-u", 1, file="replay")
    assert ran.code == 0, ran.output
    prompts = host.prompts()  # type: ignore[attr-defined]
    assert prompts[0] == "ada 0"
    assert prompts[-1] == "\n\n".join(f"ada {turn}" for turn in (0, 0, 1, 1, 2, 2, 3))


@pytest.mark.parametrize("arrivals", ["trace", "closed"])
@pytest.mark.parametrize("when", ["test_start", "request"])
def test_a_trace_that_breaks_after_the_check_ends_the_run(
    run: Run, tmp_path: Path, arrivals: str, when: str
) -> None:
    path = tmp_path / "trace.jsonl"
    late = [{**TRACE[0], "timestamp": 10 * at, "output_length": 2} for at in range(1, 2000)]
    kept(path, late)
    locustfile = tmp_path / "breaking.py"
    locustfile.write_text(
        "from locust import events\n"
        "from locustfiles.replay import ReplayUser\n"
        f"@events.{when}.add_listener\n"
        "def spoil(**_):\n"
        f"    with open({str(path)!r}, 'r+') as trace:\n"
        "        trace.write('{' * 400_000)\n"
    )
    ran = run(
        "--model", "normal", "--trace", path, "-u", 1, "--arrivals", arrivals, file=locustfile
    )
    assert ran.code == 1, ran.output
    assert re.search("not (a )?JSON", ran.output)
    if when == "request":  # else it breaks before there is a run
        facts = ran.json("run.json")
        assert (facts["exit_code"], facts["user_errors"] > 0) == (1, True)


def test_a_replay_without_a_trace_is_refused(run: Run) -> None:
    ran = run("--model", "normal", "-u", 1, file="replay")
    assert ran.code == 2
    assert "--arrivals trace needs a trace: give --trace FILE" in ran.output
    assert "Traceback" not in ran.output
