"""A line of your own at the end: the contexts that were slow on average.

    kvswarm run locustfiles/examples/own_report.py --host http://127.0.0.1:8000 -u 8 -t 30s

kvswarm fires Locust's `request` event for each request that ended, with its context. The run
directory has the same and more, a row for each request.
"""

from collections import defaultdict
from statistics import mean
from typing import Any

from locust import events, task

from kvswarm import ContextUser

times_ms: dict[str, list[float]] = defaultdict(list)


@events.request.add_listener
def remember(response_time: float, context: dict[str, str], **_: Any) -> None:
    times_ms[context["context_id"]].append(response_time)


@events.quit.add_listener
def report(**_: Any) -> None:
    slowest = sorted(times_ms, key=lambda context_id: -mean(times_ms[context_id]))
    for context_id in slowest[:3]:
        print(f"slow: {context_id}, {mean(times_ms[context_id]):.0f} ms")  # noqa: T201


class Asker(ContextUser):
    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
