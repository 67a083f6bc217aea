"""A worker's part: follow the master's plan, send it rows and statistics, say when drained."""

import logging
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import gevent
from locust.exception import RPCError

from loadgen.errors import KvswarmError, UsageError
from loadgen.swarm.leading.clock_offset import ClockAsker
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.swarm.sending.ledger import WorkerLedger
from loadgen.swarm.sending.plan import CLOCK, CLOCK_OFFSET, DELTA, DRAINED, FAILED, SPENT, Plan
from loadgen.swarm.sending.stage import Stage
from loadgen.workload.corpus import load_corpus

logger = logging.getLogger(__name__)

SEND_INTERVAL_S = 0.5


class Follower:
    """Opens and closes this worker's stage as the master says."""

    def __init__(self, environment: Any, stage: Stage) -> None:
        self.environment = environment
        self.stage = stage
        self._ledger: WorkerLedger | None = None
        self._sender: gevent.Greenlet | None = None
        self._clock = ClockAsker(self._ask_time)
        environment.runner.greenlet.spawn(self._clock.ask_for_ever)

    def take_plan(self, environment: Any, msg: Any) -> None:
        """The master starts a swarm; its order to spawn users comes after this message."""
        try:
            plan = Plan.from_wire(msg.data)
            if self.environment.runner.client_id in plan.workers:  # else it came after the plan
                self._follow(plan)
        except Exception as error:  # Locust would log it here, and the master would wait
            reason = str(error) if isinstance(error, KvswarmError) else repr(error)
            logger.error("this worker cannot do its part: %s", reason)
            self.environment.runner.send_message(FAILED, {"reason": reason})

    def _follow(self, plan: Plan) -> None:
        options = SwarmOptions.read(plan.options)
        self._check(plan, options)
        runner = self.environment.runner
        run = plan.start_unix_s
        plan = self._by_own_clock(plan)
        self._ledger = WorkerLedger(
            lambda delta: runner.send_message(DELTA, {**delta, "run": run}), options.warmup_s
        )
        self.stage.open(
            plan, self._ledger, runner.client_id, lambda: runner.send_message(SPENT, {})
        )
        self._sender = gevent.spawn(self._send_for_ever)

    def _check(self, plan: Plan, options: SwarmOptions) -> None:
        """Raise UsageError where this host has other users or texts than the master's."""
        own = {each.__name__ for each in self.environment.user_classes}
        if missing := ", ".join(sorted(plan.user_classes.keys() - own)):
            raise UsageError(f"it has no user class {missing}: start it with the same locustfile")
        corpus = load_corpus(options.corpus, options.questions)
        if corpus.sha256 != plan.corpus_sha256:
            raise UsageError(f"{corpus.source} has other texts there: copy the master's corpus")

    def take_time(self, environment: Any, msg: Any) -> None:
        """The master says what time it is."""
        self._clock.take(msg.data)

    def take_drain(self, environment: Any, msg: Any) -> None:
        """The master wants nothing new sent and everything in flight finished."""
        self.environment.stop_timeout = msg.data["stop_timeout"]
        runner = self.environment.runner
        runner.stop()
        # The master closes the run once all have drained; Locust itself would report later.
        runner._send_stats()
        runner.send_message(DRAINED, {})

    def stopping(self) -> None:
        """Locust's `test_stopping` on this worker."""
        self.stage.stop_sending()
        self.stage.drain()

    def stopped(self) -> None:
        """Locust's `test_stop` on this worker."""
        if self._sender is not None:
            self._sender.kill()  # what it was sending goes with the last records
            self._sender = None
        self.stage.close()
        # Locust sleeps for the stop timeout before it calls a stopped worker ready again; this
        # one has drained, and the next order to spawn brings the timeout anew.
        self.environment.stop_timeout = 0.0

    def _ask_time(self, question: dict[str, float]) -> None:
        with suppress(RPCError):  # Locust connects again
            self.environment.runner.send_message(CLOCK, question)

    def _by_own_clock(self, plan: Plan) -> Plan:
        """The plan with its start as this host's clock shows it; the master hears of it."""
        offset = self._clock.offset
        if offset is None:
            return plan
        self.environment.runner.send_message(CLOCK_OFFSET, asdict(offset))
        if not offset.is_certain:
            return plan
        return replace(plan, start_unix_s=plan.start_unix_s - offset.master_ahead_s)

    def _send_for_ever(self) -> None:
        while True:
            gevent.sleep(SEND_INTERVAL_S)
            if self._ledger is not None:
                with suppress(RPCError):  # Locust connects again, and the ledger keeps the rows
                    self._ledger.flush()
