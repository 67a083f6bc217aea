"""The workers of a master, and those of them that take part in a run."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent

from loadgen.stats.clock import RunClock
from loadgen.stats.silence import MOST_STEP_S
from loadgen.swarm.leading.clock_offset import ClockOffset
from loadgen.swarm.process import is_at_work
from loadgen.swarm.sending.plan import CLOCK, DRAIN, PLAN, Plan

WORKERS_GRACE_S = 30.0
"""How long after the drain time a worker may take to report that it has drained."""
CLOCKS_S = 2.0
"""How long a start waits for workers that have just connected to ask for the time."""
TOLD_OFFSET_S = 0.1
"""Hosts that keep their clocks set are closer together."""


class WorkerRegistry:
    """Who is connected, and who knows the master's time."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self._knowing: set[str] = set()
        self._pids: dict[str, int] = {}
        """Of the workers that this process has forked."""

    def present(self) -> list[str]:
        """Client ids of the workers that are there, in the order they came."""
        clients = self.runner.clients
        there = {c.id for c in clients.ready + clients.spawning + clients.running}
        return [client_id for client_id in self.runner.worker_indexes if client_id in there]

    def await_clocks(self) -> None:
        """Wait until every worker has been told the time, without which it would go by its own:
        what is sent to it comes there in order."""
        deadline = time.monotonic() + CLOCKS_S
        while not set(self.present()) <= self._knowing and time.monotonic() < deadline:
            gevent.sleep(0.01)

    def tell_time(self, client_id: str, question: Mapping[str, float]) -> None:
        """A worker asks what time it is."""
        answer = {**question, "master_unix_s": time.time()}
        self.runner.send_message(CLOCK, answer, client_id)
        self._knowing.add(client_id)
        if question.get("pid"):
            self._pids[client_id] = int(question["pid"])

    def keep_busy(self) -> None:
        """Have Locust wait for forked workers that are too busy to give a sign of life: it would
        give up after four seconds, and their rows would come too late."""
        for client_id, pid in self._pids.items():
            client = self.runner.clients.get(client_id)
            if client is not None and is_at_work(pid):
                client.heartbeat = max(client.heartbeat, 1)


class RunWorkers:
    """Sends the plan, notices who is lost or comes too late, waits until all have drained."""

    def __init__(self, registry: WorkerRegistry, plan: Plan, say: Callable[[str], None]) -> None:
        self.lost = 0
        self.fault: str | None = None
        """Why one of them cannot do its part."""
        self._registry = registry
        self._plan = plan
        self._clock = RunClock(plan.start_unix_s)
        self._say = say
        self._taking_part = set(plan.workers)
        self._draining: set[str] = set()
        self._spent: set[str] = set()
        self._failed: set[str] = set()

    def send_plan(self) -> None:
        """Let every worker know its share; Locust's orders to spawn users come after it."""
        self._registry.runner.send_message(PLAN, self._plan.to_wire())

    def let_go(self) -> None:
        """They are told to end before they send anything: none is lost."""
        self._taking_part = set()

    def spent(self, client_id: str) -> None:
        """A worker has sent its share of a limited number of batches."""
        self._spent.add(client_id)

    def failed(self, client_id: str, reason: str) -> None:
        """A worker cannot do its part: it sends nothing."""
        if client_id in self._taking_part:
            self._taking_part.discard(client_id)
            self._failed.add(client_id)
            self.lost += 1
            who = f"worker {self._plan.workers[client_id]} on {client_id.rpartition('_')[0]}"
            self.fault = self.fault or f"{who} cannot do its part: {reason}"

    @property
    def all_spent(self) -> bool:
        """Whether every worker that still takes part has sent its share."""
        return bool(self._taking_part) and self._taking_part <= self._spent

    def joined(self, client_id: str) -> None:
        """A worker has connected: it is too late for a swarm that is under way."""
        if self._taking_part and client_id not in self._taking_part:
            self._say("a worker joined after the start: it takes no part in this run")

    def look(self) -> None:
        """Notice workers that are gone, and those that were taken for gone and are back."""
        self._registry.keep_busy()
        self._welcome()
        gone = self._taking_part - set(self._registry.present()) - self._draining
        if gone:
            self._taking_part -= gone
            self.lost += len(gone)
            self._say(self._loss(gone))
            if not self._taking_part:
                self.fault = self.fault or "no worker of this run is left"

    def _welcome(self) -> None:
        """A worker that was silent for long goes on sending: the end has to wait for it, too."""
        known = set(self._plan.workers) - self._failed if self._taking_part else set()
        back = (known - self._taking_part) & set(self._registry.present())
        if back:
            self._taking_part |= back
            self.lost -= len(back)
            self._say(f"{len(back)} worker(s) that were taken for lost are back")

    @property
    def lost_share(self) -> float:
        """The part of the swarm's requests, 0 to 1, that the lost workers were to send."""
        return self.lost / len(self._plan.workers)

    def _loss(self, gone: set[str]) -> str:
        names = ", ".join(str(index) for index in sorted(map(self._plan.workers.__getitem__, gone)))
        at_s = self._clock.now_s()
        return (
            f"worker(s) {names} of {len(self._plan.workers)} lost at {at_s:.0f} s: a share of"
            f" {self.lost_share:.0%} of the requests is not sent from now on, and what was not"
            " reported is missing"
        )

    def corrected(self, client_id: str, offset: ClockOffset) -> None:
        """A worker has compared the clocks and goes by the master's."""
        if not offset.is_certain:
            return
        apart_s, worker = abs(offset.master_ahead_s), self._plan.workers.get(client_id)
        if apart_s >= TOLD_OFFSET_S:
            where = "behind" if offset.master_ahead_s > 0 else "ahead of"
            self._say(
                f"the clock of worker {worker} is {apart_s:.3f} s {where} the master's:"
                f" its times are corrected, to within {offset.error_s * 1000:.1f} ms"
            )

    def drain(self, stop_timeout_s: float) -> None:
        """Have nothing new sent and wait until nothing is in flight any more."""
        self.look()
        self._draining = set(self._registry.present()) & self._taking_part
        self._registry.runner.send_message(DRAIN, {"stop_timeout": stop_timeout_s})
        left_s = stop_timeout_s + WORKERS_GRACE_S
        while self._draining & set(self._registry.present()) and left_s > 0:
            began_s = time.monotonic()
            gevent.sleep(0.05)
            self._registry.keep_busy()
            left_s -= min(time.monotonic() - began_s, MOST_STEP_S)
        silent, self._draining = self._draining, set()
        if silent:
            self.lost += len(silent)
            self._say(
                f"{len(silent)} worker(s) did not report the end of their requests: what they had"
                " not reported is missing"
            )
        self._taking_part = set()

    def drained(self, client_id: str) -> None:
        """A worker has nothing in flight any more."""
        self._draining.discard(client_id)
