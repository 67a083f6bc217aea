"""Recorded traffic, sent again: when it came, how long it was, and what of it was shared.

    kvswarm run replay --target vllm --trace trace.jsonl -u 0
    locust -f locustfiles/replay.py --host http://127.0.0.1:8000 --trace trace.jsonl -u 64

Traces of Mooncake, Azure, BurstGPT and ShareGPT are read as they are. Those without times need
another --arrivals. See `--help` for --trace-speed, --trace-length-scale and what can be left out.
"""

from locust import task

from kvswarm import ContextUser, set_defaults

set_defaults(arrivals="trace")


class ReplayUser(ContextUser):
    """Sends whatever request of the trace is next and waits for the reply."""

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
