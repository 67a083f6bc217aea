"""A stream of different, unordered requests over many contexts.

    kvswarm run locustfiles/unordered.py --target vllm -u 8 -t 30s
    locust -f locustfiles/unordered.py --host http://127.0.0.1:8000

Diversity is set by options: --contexts, --zipf, --stickiness, --repeat, --context-tokens,
--output-tokens, --seed; the pace by --arrivals and --rate. See `--help`.
"""

from locust import task

from kvswarm import ContextUser


class UnorderedUser(ContextUser):
    """Sends whatever request is next in the swarm's stream and waits for the reply."""

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
