"""A `LoadTestShape` moves `AsyncUser`s up and down."""

from pathlib import Path

from locust_process import running_locust

LOCUSTFILE = """
class Steady(AsyncUser):
    async def on_start(self):
        note("start")

    async def on_stop(self):
        note("stop")

    @task
    async def work(self):
        await asyncio.sleep(3600)

class UpAndDown(LoadTestShape):
    stages = [4, 1, 2]

    def tick(self):
        if self.get_current_user_count() == self.stages[0]:
            note("users", self.stages.pop(0))
        return (self.stages[0], 100) if self.stages else None
"""


def test_a_shape_leads_users_up_and_down_and_ends_the_run(tmp_path: Path) -> None:
    with running_locust(tmp_path, LOCUSTFILE) as locust:
        assert locust.wait() == 0
        assert locust.notes == [
            *["start"] * 4,
            "users 4",
            *["stop"] * 3,
            "users 1",
            "start",
            "users 2",
            *["stop"] * 2,
        ]
        assert "Traceback" not in locust.output
