"""Two kinds of user on one host: many who want a line, a few who want an essay.

    kvswarm run locustfiles/examples/mixed_users.py --host http://127.0.0.1:8000 -u 40 -r 10 -t 1m

The column `user` of `requests.csv` begins with the class, so the two can be told apart.
"""

from locust import constant, task

from kvswarm import ContextUser


class Asker(ContextUser):
    weight = 3

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn(), {"max_tokens": 4})


class Writer(ContextUser):
    weight = 1
    wait_time = constant(0.2)

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn(), {"max_tokens": 32})
