"""Batches of different requests over many contexts, each timed as one unit.

    kvswarm run batched --target vllm --batch-size 36 --batches 10 -u 1
    locust -f locustfiles/batched.py --host http://127.0.0.1:8000

A batch is sent as requests at once or as one list of prompts (--batch-as), as drawn or sorted by
context (--order). Diversity and pace are set as for `unordered`. See `--help`.
"""

from locust import task

from kvswarm import ContextUser


class BatchedUser(ContextUser):
    """Sends whatever batch is next in the swarm's stream and waits for its last reply."""

    sends_batches = True

    @task
    async def ask(self) -> None:
        await self.send_batch(await self.next_batch())
