"""What tasks, hooks and waits of an `AsyncUser` do in a real, headless Locust."""

import asyncio
import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from locust_process import LocustProcess, running_locust

ECHOES = 20
LOCUSTFILE = """
WEIGHTED_TASKS = 400

class Weighted(AsyncUser):
    fixed_count, done = 1, 0

    @task(3)
    async def often(self):
        self.count("often")

    @task
    async def seldom(self):
        self.count("seldom")

    def count(self, name):
        note("weighted", name)
        self.done += 1
        if self.done == WEIGHTED_TASKS:
            note("done")
            raise StopUser

class Waiting(AsyncUser):
    fixed_count, tasks_done = 1, 0
    wait_time = constant(0.2)

    @task
    async def tell_time(self):
        note("waiting", time.monotonic())
        self.tasks_done += 1
        if self.tasks_done == 4:
            note("done")
            raise StopUser

class Rescheduling(AsyncUser):
    fixed_count, step = 1, 0

    def wait_time(self):
        note("rescheduling", "wait")
        return 0.01

    @task
    async def reschedule(self):
        self.step += 1
        note("rescheduling", self.step)
        if self.step == 2:
            raise RescheduleTask
        if self.step == 3:
            raise RescheduleTaskImmediately
        if self.step == 5:
            note("done")
            raise StopUser
        note("rescheduling", "end")

def on_gevents_side():
    return threading.get_native_id() == os.getpid()

class PlainHooks(AsyncUser):
    fixed_count = 1

    def on_start(self):
        time.sleep(0.01)
        note("plain", "start", on_gevents_side())

    def on_stop(self):
        note("plain", "stop", on_gevents_side())

    @task
    async def work(self):
        note("plain", "task", on_gevents_side())
        note("done")
        await asyncio.sleep(3600)

mood = contextvars.ContextVar("mood")

class AsyncHooks(AsyncUser):
    fixed_count = 1

    async def on_start(self):
        await asyncio.sleep(0.01)
        mood.set("cheerful")
        self.own_task = asyncio.current_task()
        note("async", "start")

    async def on_stop(self):
        # In a coroutine that was cancelled and not put right, this would be no TimeoutError.
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(3600)
        except TimeoutError:
            note("async", "stop", mood.get(), asyncio.current_task() is self.own_task)

    @task
    async def work(self):
        note("async", "task", mood.get(), asyncio.current_task() is self.own_task)
        note("done")
        await asyncio.sleep(3600)

class Threads(AsyncUser):
    fixed_count = 1

    @task
    async def leave_the_loop(self):
        before = psutil.Process().num_fds()
        for _ in range(10):
            jobs = [asyncio.to_thread(self.job, number) for number in range(10)]
            assert await asyncio.gather(*jobs) == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
        try:
            await asyncio.to_thread(int, "no number")
        except ValueError as error:
            note("threads", "error", error)
        note("threads", "descriptors", psutil.Process().num_fds() - before)
        note("done")
        raise StopUser

    def job(self, number):
        time.sleep(0.001)
        return number * number

class Echo(AsyncUser):
    fixed_count, echoes = 2, 0

    async def on_start(self):
        port = int(os.environ["ECHO_PORT"])
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)

    async def on_stop(self):
        self.writer.close()
        await self.writer.wait_closed()

    @task
    async def echo(self):
        started = time.perf_counter()
        self.writer.write(b"hello\\n")
        reply = await self.reader.readline()
        self.fire_request(
            request_type="TCP",
            name="echo",
            response_time=(time.perf_counter() - started) * 1000,
            response_length=len(reply),
            exception=None,
        )
        self.echoes += 1
        if self.echoes == ECHOES:
            note("done")
            raise StopUser

class Ender(AsyncUser):
    fixed_count = 1
    wait_time = constant(0.05)

    @task
    async def end(self):
        if noted("done") == 8:
            raise StopTest("everybody is done")
"""


class EchoServer:
    """Sends lines back, on an own event loop in a thread of the test process."""

    def __init__(self) -> None:
        self.lines = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            self._listening.set()
            await self._over.wait()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.lines += 1
            writer.write(line)
        writer.close()


@pytest.fixture(scope="module")
def echo_server() -> Iterator[EchoServer]:
    server = EchoServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def swarm(folder: Path, echo_server: EchoServer) -> Iterator[LocustProcess]:
    """One run in which every user class does its part, and one ends the test."""
    locustfile = LOCUSTFILE.replace("ECHOES", str(ECHOES))
    options = ("-u", "9", "-r", "100", "-t", "60s", "--json-file", "stats")
    port = str(echo_server.port)
    with running_locust(folder, locustfile, *options, ECHO_PORT=port) as locust:
        locust.wait()
        yield locust


def told(swarm: LocustProcess, who: str) -> list[str]:
    return [note.split(maxsplit=1)[1] for note in swarm.notes if note.split()[0] == who]


def test_a_task_is_picked_by_its_weight(swarm: LocustProcess) -> None:
    picked = told(swarm, "weighted")
    assert len(picked) == 400
    assert 250 < picked.count("often") < 350  # 300 expected, five standard deviations


def test_stop_user_ends_one_user_and_no_other(swarm: LocustProcess) -> None:
    assert len(told(swarm, "weighted")) == 400
    assert swarm.count("done") == 8


def test_wait_time_lies_between_tasks(swarm: LocustProcess) -> None:
    times = [float(moment) for moment in told(swarm, "waiting")]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) == 3
    assert all(gap > 0.19 for gap in gaps)


def test_reschedule_ends_the_task_and_only_immediately_skips_the_wait(
    swarm: LocustProcess,
) -> None:
    first, rescheduled, at_once = ["1", "end", "wait"], ["2", "wait"], ["3"]
    last = ["4", "end", "wait", "5"]
    assert told(swarm, "rescheduling") == [*first, *rescheduled, *at_once, *last]


def test_plain_hooks_run_once_each_on_gevents_side(swarm: LocustProcess) -> None:
    assert told(swarm, "plain") == ["start True", "task False", "stop True"]


def test_async_hooks_and_tasks_are_one_coroutine(swarm: LocustProcess) -> None:
    assert told(swarm, "async") == ["start", "task cheerful True", "stop cheerful True"]


def test_to_thread_returns_raises_and_leaves_no_descriptors(swarm: LocustProcess) -> None:
    error, descriptors = told(swarm, "threads")
    assert error == "error invalid literal for int() with base 10: 'no number'"
    assert int(descriptors.split()[1]) < 50  # 100 jobs that leak would leave 200


def test_any_asyncio_client_works_and_its_requests_are_in_the_statistics(
    swarm: LocustProcess, echo_server: EchoServer, folder: Path
) -> None:
    rows = {row["name"]: row for row in json.loads((folder / "stats.json").read_text())}
    assert echo_server.lines == 2 * ECHOES
    assert rows["echo"]["num_requests"] == 2 * ECHOES
    assert rows["echo"]["num_failures"] == 0


def test_stop_test_ends_the_run_cleanly(swarm: LocustProcess) -> None:
    assert swarm.process.returncode == 0
    assert "everybody is done" in swarm.output
    assert "Run time limit" not in swarm.output.split("everybody is done")[1]
    assert "Traceback" not in swarm.output
