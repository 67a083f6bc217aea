"""Which workers take part in a swarm, seen from the master."""

import time
from collections.abc import Callable
from typing import Any

import gevent

from loadgen.swarm.messages import DRAIN, PLAN
from loadgen.swarm.plan import Plan

WORKERS_GRACE_S = 10.0
"""How long after the drain time a worker may take to report that it has drained."""


class WorkerRoll:
    """Sends the plan, notices who is lost or comes too late, waits until all have drained."""

    def __init__(self, runner: Any, say: Callable[[str], None]) -> None:
        self.lost = 0
        self._runner = runner
        self._say = say
        self._taking_part: set[str] = set()
        self._draining: set[str] = set()
        self._spent: set[str] = set()

    def present(self) -> list[str]:
        """Client ids of the workers that are there, in the order they came."""
        clients = self._runner.clients
        there = {c.id for c in clients.ready + clients.spawning + clients.running}
        return [client_id for client_id in self._runner.worker_indexes if client_id in there]

    def start(self, plan: Plan) -> None:
        """Let every worker know its share; Locust's orders to spawn users come after it."""
        self.lost = 0
        self._taking_part, self._spent = set(plan.workers), set()
        self._runner.send_message(PLAN, plan.to_wire())

    def spent(self, client_id: str) -> None:
        """A worker has sent its share of a limited number of batches."""
        self._spent.add(client_id)

    @property
    def all_spent(self) -> bool:
        """Whether every worker that still takes part has sent its share."""
        return bool(self._taking_part) and self._taking_part <= self._spent

    def joined(self, client_id: str) -> None:
        """A worker has connected: it is too late for a swarm that is under way."""
        if self._taking_part and client_id not in self._taking_part:
            self._say("a worker joined after the start: it takes no part in this run")

    def look(self) -> None:
        """Notice workers that are gone for good."""
        gone = self._taking_part - set(self.present()) - self._draining
        if gone:
            self._taking_part -= gone
            self.lost += len(gone)
            self._say(f"{len(gone)} worker(s) lost: their share of the requests is not sent")

    def drain(self, stop_timeout_s: float) -> None:
        """Have nothing new sent and wait until nothing is in flight any more."""
        self.look()
        self._draining = set(self.present()) & self._taking_part
        self._runner.send_message(DRAIN, {"stop_timeout": stop_timeout_s})
        deadline = time.monotonic() + stop_timeout_s + WORKERS_GRACE_S
        while self._draining and time.monotonic() < deadline:
            gevent.sleep(0.05)
            self._draining.intersection_update(self.present())  # one may have been lost
        if self._draining:
            self._say(f"{len(self._draining)} worker(s) did not report the end of their requests")
        self._taking_part = set()

    def drained(self, client_id: str) -> None:
        """A worker has nothing in flight any more."""
        self._draining.discard(client_id)
