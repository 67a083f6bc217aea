"""`AsyncUser` swarms over several processes: `--processes`, and `--master` with `--worker`s."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from locust_process import LocustProcess, LocustWeb, running_locust, running_web

from loadgen.targets.hardware import free_ports

LOCUSTFILE = """
from locust import runners

runners.WORKER_REPORT_INTERVAL = 0.2

class Reporting(AsyncUser):
    wait_time = constant(0.02)
    tasks_done = 0

    async def on_start(self):
        note("started")
        note("pid", os.getpid())

    async def on_stop(self):
        note("stopped")

    @task
    async def report(self):
        self.tasks_done += 1
        if self.tasks_done == 2:
            raise ValueError("boom on a worker")
        if self.tasks_done > 10:
            await asyncio.sleep(3600)
        self.fire_request(
            request_type="TICK", name="tick", response_time=7, response_length=0, exception=None
        )
"""
REQUESTS = 9
"""What each user of it reports."""

ENDING = """
from locust import runners

runners.WORKER_REPORT_INTERVAL = 0.2

class Ending(AsyncUser):
    tasks_done = 0

    async def on_start(self):
        note("pid", os.getpid())

    async def on_stop(self):
        note("stopped")

    @task
    async def report(self):
        self.tasks_done += 1
        if self.tasks_done <= 10:
            self.fire_request(
                request_type="TICK", name="tick", response_time=7, response_length=0, exception=None
            )
            return
        note("done")
        while noted("done") < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        raise StopTest("enough is enough")
"""


def port_options() -> list[str]:
    port = str(*free_ports(1))
    return ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]


def pids(locust: LocustProcess) -> set[int]:
    return {int(note.split()[1]) for note in locust.notes if note.startswith("pid ")}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[LocustWeb]:
    """A leader with its web UI and two forked workers that are ready."""
    with running_web(tmp_path, LOCUSTFILE, "--processes", "2", *port_options()) as web:
        web.until(lambda: states(web) == ["ready"] * 2, "two ready workers")
        yield web


def states(web: LocustWeb) -> list[str]:
    return [worker["state"] for worker in web.statistics().get("workers", [])]


def requests(web: LocustWeb) -> int:
    rows = {row["name"]: row for row in web.statistics()["stats"]}
    return int(rows["tick"]["num_requests"]) if "tick" in rows else 0


def test_forked_workers_share_a_swarm_that_is_started_edited_stopped_and_restarted(
    web: LocustWeb,
) -> None:
    web.swarm(4)
    web.until(lambda: requests(web) == 4 * REQUESTS, "all requests of both workers")
    assert len(pids(web)) == 2
    assert web.process.pid not in pids(web)
    (shown,) = web.get("/exceptions")["exceptions"]
    assert (shown["msg"], shown["count"]) == ("boom on a worker", 4)
    assert 'raise ValueError("boom on a worker")' in shown["traceback"]
    assert len(shown["nodes"].split(", ")) == 2
    web.swarm(2)
    web.until_noted("stopped", 2)
    web.post("/stop")
    web.until_noted("stopped", 4)
    web.until(lambda: states(web) == ["ready"] * 2, "two ready workers again")
    web.swarm(2)
    web.until(lambda: requests(web) == 2 * REQUESTS, "all requests of the second swarm")
    time.sleep(0.3)  # the server may still be in the call that sent what was read just now
    os.killpg(web.process.pid, signal.SIGINT)  # Ctrl-C in a terminal meets the whole group
    web.wait()
    assert web.group() == []
    assert web.count("stopped") == 6
    ending = web.output.split("Shutting down")[1]
    assert "Traceback" not in ending, ending


def test_sigterm_to_the_leader_ends_its_workers_cleanly(web: LocustWeb) -> None:
    web.swarm(2)
    web.until_noted("started", 2)
    web.process.send_signal(signal.SIGTERM)
    web.wait()
    assert web.group() == []
    assert web.count("stopped") == 2, web.output


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="Linux tells of a parent's death")
def test_workers_do_not_outlive_a_leader_that_is_killed(web: LocustWeb) -> None:
    web.swarm(2)
    web.until_noted("started", 2)
    web.process.kill()
    web.process.wait(60)
    web.until(lambda: web.group() == [], "the end of the workers")
    assert web.count("stopped") == 2, web.output


def test_stop_test_on_a_worker_ends_the_whole_test_of_master_and_workers(tmp_path: Path) -> None:
    ports = port_options()
    load = ["-u", "2", "-r", "100", "-t", "120s", "--expect-workers", "2", "--json-file", "stats"]
    roles = [["--master", *ports, *load], ["--worker", *ports], ["--worker", *ports]]
    with ExitStack() as lifetime:
        processes = [
            lifetime.enter_context(running_locust(tmp_path, ENDING, *options)) for options in roles
        ]
        assert [process.wait() for process in processes] == [0, 0, 0]
        master = processes[0]
        assert len(pids(master)) == 2
        assert master.count("stopped") == 2
        assert "limit reached" not in master.output
        (tick,) = json.loads((tmp_path / "stats.json").read_text())
        assert tick["num_requests"] == 20
