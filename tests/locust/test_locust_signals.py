"""Ctrl-C and SIGTERM end a real Locust with `AsyncUser`s cleanly, whatever it is doing."""

import signal
from pathlib import Path

import pytest
from locust_process import running_locust, running_web
from test_swarm_engine import lines

LOCUSTFILE = """
class Plain(AsyncUser):
    def on_stop(self):
        note("stopped")

    @task
    async def work(self):
        note("begins")
        try:
            await asyncio.sleep(3600)
        finally:
            note("cleaned up")

class Async(Plain):
    async def on_stop(self):
        await asyncio.sleep(0.01)
        note("stopped")

class Busy(AsyncUser):
    \"\"\"Keeps the hub busy, so that a signal meets it amid the results.\"\"\"

    async def on_start(self):
        note("begins")

    async def on_stop(self):
        note("cleaned up")
        note("stopped")

    @task
    async def report(self):
        for _ in range(20):
            self.fire_request(
                request_type="X", name="x", response_time=1, response_length=0, exception=None
            )
        await asyncio.sleep(0.01)
"""
BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_ends_a_headless_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with running_locust(tmp_path, LOCUSTFILE, "-u", "12", "-r", "100") as locust:
        locust.until_noted("begins", 12)
        locust.process.send_signal(number)
        assert locust.wait() == 0
        assert locust.count("cleaned up") == 12
        assert locust.count("stopped") == 12
        assert "Traceback" not in locust.output
        assert "did not end" not in locust.output


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_ends_a_swarm_of_the_web_ui_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_web(tmp_path, LOCUSTFILE) as web:
        web.swarm(6)
        web.until_noted("begins", 6)
        web.process.send_signal(number)
        assert web.wait() == 0
        assert web.count("stopped") == 6
        assert "Traceback" not in web.output


def test_a_task_that_swallows_its_cancellation_is_its_users_last(tmp_path: Path) -> None:
    locustfile = """
        class Stubborn(AsyncUser):
            def on_stop(self):
                note("stopped")

            @task
            async def work(self):
                note("begins")
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    note("goes on")
        """
    with running_locust(tmp_path, locustfile) as locust:
        locust.until_noted("begins")
        locust.process.send_signal(signal.SIGINT)
        assert locust.wait() == 0
        assert locust.notes == ["begins", "goes on", "stopped"]


def test_ctrl_c_leaves_tasks_in_flight_the_stop_timeout(tmp_path: Path) -> None:
    locustfile = """
        class Finishing(AsyncUser):
            @task
            async def work(self):
                note("begins")
                await asyncio.sleep(0.3)
                note("ends")
        """
    with running_locust(tmp_path, locustfile, "--stop-timeout", "30", "-u", "2") as locust:
        locust.until_noted("begins", 2)
        locust.process.send_signal(signal.SIGINT)
        assert locust.wait() == 0
        assert locust.count("ends") == locust.count("begins")


def test_a_user_that_has_left_is_none_of_those_that_locust_stops(tmp_path: Path) -> None:
    """It would say of each that it has no proper args."""
    script = """
        from loadgen.swarm.leading.leaving import LivingUsers

        users = LivingUsers()
        left, stays = users.spawn(lambda: None), users.spawn(gevent.sleep, 60)

        def look():  # before the hub has told the end of the first
            print(left.dead, left in users.greenlets, list(users) == [stays])

        gevent.spawn(look).join()
        users.kill()
        """
    assert lines(tmp_path, script) == ["True True True"]
