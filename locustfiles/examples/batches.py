"""Batches with a pause between them, each sorted by context and timed as one unit.

    kvswarm run locustfiles/examples/batches.py --host http://127.0.0.1:8000 -u 2 --batches 10

`send_batch` returns once the last reply is complete.
"""

from locust import constant, task

from kvswarm import ContextUser, set_defaults

set_defaults(order="grouped", batch_size=12)


class Clerk(ContextUser):
    sends_batches = True
    wait_time = constant(0.5)

    @task
    async def ask(self) -> None:
        batch = await self.send_batch(await self.next_batch())
        if batch.makespan_s is not None:
            print(f"batch {batch.batch_id}: {batch.makespan_s:.2f} s")  # noqa: T201
