"""Locustfiles that `AsyncUser` cannot run are refused in words."""

from pathlib import Path

from locust_process import running_locust, running_web


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


def test_the_class_picker_chooses_among_users_of_both_kinds(tmp_path: Path) -> None:
    locustfile = """
        from locustfiles.batched import BatchedUser
        from locustfiles.unordered import UnorderedUser
        """
    with running_web(tmp_path, locustfile, "--class-picker") as web:

        def refusal(*classes: str) -> str:
            host = "http://127.0.0.1:9"
            form = {"user_count": 1, "spawn_rate": 1, "host": host, "user_classes": classes}
            return str(web.post("/swarm", **form)["message"])

        for one in ("BatchedUser", "UnorderedUser"):
            assert "127.0.0.1:9" in refusal(one)
        assert "name the user classes of one kind" in refusal()
        assert "name the user classes of one kind" in refusal("BatchedUser", "UnorderedUser")


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
