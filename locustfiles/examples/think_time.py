"""Users who read an answer before they ask again.

    kvswarm run locustfiles/examples/think_time.py --host http://127.0.0.1:8000 -u 50 -r 5 -t 2m

`wait_time` is Locust's: `between`, `constant`, `constant_pacing`, or a method of your own.
"""

from locust import between, task

from kvswarm import ContextUser


class Reader(ContextUser):
    wait_time = between(0.5, 2)

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
