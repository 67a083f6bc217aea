"""Requests that come when they come, whether the host keeps up or not.

    kvswarm run locustfiles/examples/open_loop.py --host http://127.0.0.1:8000 -u 0 -t 40s

Poisson arrivals: 5 a second for half a minute, then 20. Latency counts from when a request was due.
`-u 0` sets no limit to how many are in flight.
"""

from locust import task

from kvswarm import ContextUser, set_defaults

set_defaults(arrivals="poisson", rate="5:30,20", contexts=20, zipf=1.0)


class Passer(ContextUser):
    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
