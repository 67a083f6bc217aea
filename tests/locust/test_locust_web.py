"""An `AsyncUser` swarm started, edited, stopped and restarted over Locust's HTTP API."""

from collections.abc import Iterator
from typing import Any

import pytest
from locust_process import LocustWeb, running_web

LOCUSTFILE = """
from locust.user.task import LOCUST_STATE_STOPPING

class Steady(AsyncUser):
    wait_time = constant(0.05)

    def on_start(self):
        note("steady start", time.monotonic())
        note("steady started")

    async def on_stop(self):
        note("steady stopped")

    @task
    async def tick(self):
        note("steady task")
        self.fire_request(
            request_type="TICK", name="tick", response_time=7, response_length=0, exception=None
        )

class Finishing(AsyncUser):
    async def on_stop(self):
        note("finishing stopped")

    @task
    async def work(self):
        note("finishing begins")
        await asyncio.sleep(0.2)
        note("finishing ends")

class Endless(AsyncUser):
    def on_stop(self):
        note("endless stopped")

    @task
    async def work(self):
        note("endless begins")
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            note("endless cleaned up")
        note("endless ends")

class Ponderous(AsyncUser):
    def wait_time(self):
        note("ponderous waits")
        while self._state != LOCUST_STATE_STOPPING:
            time.sleep(0.01)
        return 3600

    async def on_stop(self):
        note("ponderous stopped")

    @task
    async def work(self):
        pass

class Idle(AsyncUser):
    wait_time = constant(3600)

    async def on_stop(self):
        note("idle stopped")

    @task
    async def work(self):
        note("idle waits")

class Broken(AsyncUser):
    @task
    async def work(self):
        await self.explode()

    async def explode(self):
        raise ValueError("boom")

class Bereft(AsyncUser):
    @task
    async def work(self):
        other = asyncio.ensure_future(asyncio.sleep(3600))
        other.cancel()
        note("bereft begins")
        await other

class Unstartable(AsyncUser):
    async def on_start(self):
        raise RuntimeError("cannot start")

    async def on_stop(self):
        note("unstartable stopped")

    @task
    async def work(self):
        note("unstartable task")

class PlainUnstartable(AsyncUser):
    def on_start(self):
        raise RuntimeError("cannot start plainly")

    def on_stop(self):
        note("unstartable stopped")

    @task
    async def work(self):
        note("unstartable task")

class Unstoppable(AsyncUser):
    async def on_stop(self):
        raise RuntimeError("cannot stop")

    @task
    async def work(self):
        note("unstoppable begins")
        await asyncio.sleep(3600)

class Ending(AsyncUser):
    @task
    async def end(self):
        while not noted("steady started"):
            await asyncio.sleep(0.02)
        raise StopTest("enough is enough")
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocustWeb]:
    folder = tmp_path_factory.mktemp("web")
    with running_web(folder, LOCUSTFILE, "--class-picker", "--stop-timeout", "2") as web:
        yield web


@pytest.fixture
def web(process: LocustWeb) -> Iterator[LocustWeb]:
    """The same Locust for all, whose class picker chooses who is in this test's swarm."""
    process.forget()
    yield process
    process.post("/stop")


def start(web: LocustWeb, users: int, *classes: str, spawn_rate: float = 100) -> None:
    web.swarm(users, spawn_rate, user_classes=list(classes))


def exceptions(web: LocustWeb) -> dict[str, dict[str, Any]]:
    return {row["msg"]: row for row in web.get("/exceptions")["exceptions"]}


def test_start_edit_stop_and_restart(web: LocustWeb) -> None:
    start(web, 2, "Steady")
    web.until_noted("steady started", 2)
    start(web, 5, "Steady")
    web.until_noted("steady started", 5)
    start(web, 1, "Steady")
    web.until_noted("steady stopped", 4)
    tasks = web.count("steady task")
    web.until_noted("steady task", tasks + 3)  # one user is left and goes on
    assert web.count("steady stopped") == 4
    web.post("/stop")
    assert web.count("steady stopped") == 5
    start(web, 3, "Steady")
    web.until_noted("steady started", 5 + 3)
    web.post("/stop")
    assert web.count("steady stopped") == 5 + 3


def test_statistics_count_the_requests_of_a_running_swarm(web: LocustWeb) -> None:
    start(web, 2, "Steady")
    web.until(lambda: web.statistics()["user_count"] == 2, "two users in the statistics")
    web.until(lambda: tick_count(web) >= 10, "ten requests in the statistics")
    assert web.statistics()["state"] == "running"
    tick = next(row for row in web.statistics()["stats"] if row["name"] == "tick")
    assert tick["method"] == "TICK"
    assert tick["avg_response_time"] == 7
    assert tick["num_failures"] == 0


def tick_count(web: LocustWeb) -> int:
    rows = {row["name"]: row for row in web.statistics()["stats"]}
    return int(rows["tick"]["num_requests"]) if "tick" in rows else 0


def test_users_arrive_at_the_spawn_rate(web: LocustWeb) -> None:
    start(web, 4, "Steady", spawn_rate=2)
    web.until_noted("steady started", 4)
    starts = [note.split()[2] for note in web.notes if note.startswith("steady start ")]
    assert float(starts[3]) - float(starts[0]) > 0.5  # two at once, two a second later


def test_a_task_in_flight_may_finish_within_the_stop_timeout(web: LocustWeb) -> None:
    start(web, 3, "Finishing")
    web.until_noted("finishing begins", 3)
    web.post("/stop")
    assert web.count("finishing ends") == web.count("finishing begins")
    assert web.notes[-1] == "finishing stopped"
    assert web.count("finishing stopped") == 3


def test_after_the_stop_timeout_a_task_is_cancelled_and_cleans_up(web: LocustWeb) -> None:
    start(web, 2, "Endless", "Idle")
    web.until_noted("endless begins")
    web.until_noted("idle waits")
    web.post("/stop")
    # Who merely waits leaves at once; who works has the stop timeout.
    assert web.notes[-3:] == ["idle stopped", "endless cleaned up", "endless stopped"]
    assert web.count("endless ends") == 0


def test_a_stop_just_before_the_wait_is_not_overlooked(web: LocustWeb) -> None:
    timeouts = web.output.count("Not all users finished")
    start(web, 1, "Ponderous")
    web.until_noted("ponderous waits")
    web.post("/stop")
    assert web.notes == ["ponderous waits", "ponderous stopped"]
    assert web.output.count("Not all users finished") == timeouts


def test_exceptions_are_shown_with_their_true_traceback(web: LocustWeb) -> None:
    start(web, 2, "Broken")
    web.until(lambda: exceptions(web).get("boom", {}).get("count", 0), "an exception")
    count = exceptions(web)["boom"]["count"]
    web.until(lambda: exceptions(web)["boom"]["count"] > count, "another one")  # users go on
    traceback = str(exceptions(web)["boom"]["traceback"])
    assert list(exceptions(web)) == ["boom"]
    assert 'swarm.py", line' in traceback
    assert traceback.splitlines()[-1].strip() == 'raise ValueError("boom")'
    assert "in explode" in traceback
    assert "in work" in traceback


def test_a_cancellation_from_within_a_task_is_an_exception_like_others(web: LocustWeb) -> None:
    start(web, 1, "Bereft")
    web.until_noted("bereft begins", 3)  # the user goes on
    web.until(lambda: "" in exceptions(web), "an exception")
    assert "await other" in str(exceptions(web)[""]["traceback"])


def test_who_fails_to_start_is_shown_and_not_stopped(web: LocustWeb) -> None:
    start(web, 2, "Unstartable", "PlainUnstartable")
    web.until(lambda: len(exceptions(web)) == 2, "an exception of each kind")
    assert exceptions(web)["cannot start"]["count"] == 1
    assert exceptions(web)["cannot start plainly"]["count"] == 1
    web.post("/stop")
    assert web.notes == []


def test_an_on_stop_that_fails_is_shown(web: LocustWeb) -> None:
    start(web, 1, "Unstoppable")
    web.until_noted("unstoppable begins")
    web.post("/stop")
    assert exceptions(web)["cannot stop"]["count"] == 1


def test_stop_test_stops_the_swarm_and_leaves_the_web_ui(web: LocustWeb) -> None:
    start(web, 3, "Steady", "Ending")
    web.until(lambda: web.statistics()["state"] == "stopped", "the end of the swarm")
    assert web.count("steady started") == web.count("steady stopped") > 0
    assert "enough is enough" in web.output
    start(web, 1, "Steady")
    web.until_noted("steady started", web.count("steady stopped") + 1)
