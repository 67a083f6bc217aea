"""Locustfiles that `AsyncUser` cannot run are refused in words."""

from pathlib import Path

from locust_process import running_locust


def test_a_plain_task_is_refused_when_the_locustfile_is_read(tmp_path: Path) -> None:
    locustfile = """
        class Shopper(AsyncUser):
            @task
            def browse(self):
                note("browses")
        """
    with running_locust(tmp_path, locustfile, "-t", "30s") as locust:
        assert locust.wait() != 0
        last_line = locust.output.strip().splitlines()[-1]
        assert last_line.endswith("Shopper.browse must be `async def`: AsyncUser awaits it")
        assert locust.notes == []


def test_a_user_without_tasks_ends_the_test_and_says_why(tmp_path: Path) -> None:
    locustfile = """
        class Idler(AsyncUser):
            async def on_start(self):
                note("starts")
        """
    with running_locust(tmp_path, locustfile, "-t", "60s") as locust:
        assert locust.wait() == 1
        assert "Idler has no task: decorate an `async def` with @task" in locust.output
        assert "limit reached" not in locust.output
        assert locust.notes == ["starts"]
