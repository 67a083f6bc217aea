"""How many users there are over time: a morning that fills up, a peak, and an end.

    kvswarm run locustfiles/examples/load_shape.py --host http://127.0.0.1:8000

A `LoadTestShape` takes the place of -u, -r and -t.
"""

from typing import ClassVar

from locust import LoadTestShape, task

from kvswarm import ContextUser


class Visitor(ContextUser):
    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())


class Morning(LoadTestShape):
    STAGES: ClassVar = [(1, 2), (2, 8), (4, 4)]
    """Until which second there are how many users."""

    def tick(self) -> tuple[int, float] | None:
        now_s = self.get_run_time()
        return next(((users, 100.0) for until_s, users in self.STAGES if now_s < until_s), None)
