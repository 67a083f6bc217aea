"""Any asyncio client beside the questions: here someone who only lists the models.

    locust -f locustfiles/examples/own_client.py --host http://127.0.0.1:8000 --headless -u 4 -t 30s

An `AsyncUser` knows nothing of LLMs. Its tasks and hooks are coroutines, and it tells Locust of
what it did by `fire_request`, which takes what `events.request.fire` takes. This one needs
`pip install aiohttp`.
"""

import time

from aiohttp import ClientError, ClientSession
from locust import constant, task

from kvswarm import AsyncUser


class Lister(AsyncUser):
    wait_time = constant(0.2)

    async def on_start(self) -> None:
        self.session = ClientSession(self.host)

    async def on_stop(self) -> None:
        await self.session.close()

    @task
    async def models(self) -> None:
        started, length, error = time.perf_counter(), 0, None
        try:
            async with self.session.get("/v1/models", raise_for_status=True) as response:
                length = len(await response.read())
        except ClientError as failure:
            error = failure
        self.fire_request(
            request_type="GET",
            name="/v1/models",
            response_time=(time.perf_counter() - started) * 1000,
            response_length=length,
            exception=error,
        )
