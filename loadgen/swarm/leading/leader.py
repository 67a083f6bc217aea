"""The process that owns a swarm: the single process, or the master of workers."""

import logging
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import gevent
from gevent.event import Event
from locust.runners import MasterRunner

from loadgen.errors import KvswarmError
from loadgen.runs.directory import RunDirectory, open_directory
from loadgen.stats.clock import RunClock
from loadgen.stats.self_watch import SaturationRule
from loadgen.stats.server_metrics import ServerSample
from loadgen.stats.tally import Tally
from loadgen.swarm.leading.opening import describe_run, make_plan, swarm_directory
from loadgen.swarm.leading.preparation import Preparation, check_shares, prepare, sends_batches
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.leading.watches import RagWatch, ServerWatch
from loadgen.swarm.leading.worker_roll import WorkerRoll
from loadgen.swarm.sending.ledger import Listener, RunLedger
from loadgen.swarm.sending.plan import Plan
from loadgen.swarm.sending.stage import Stage
from loadgen.swarm.showing.locust_csv import LocustCsv
from loadgen.swarm.showing.stats_rows import forget_seconds
from loadgen.swarm.showing.view import View

CLOSING_S = 60.0
"""How long the end of the process may wait for a run that is being closed."""

logger = logging.getLogger(__name__)


class Leader:
    """Prepares swarms, runs them, closes their run directories, knows the exit code."""

    def __init__(self, environment: Any, stage: Stage) -> None:
        self.environment = environment
        self.stage = stage
        self.supervisor = Supervisor.of_process()
        self.ledger = RunLedger(None)
        self.listener: Listener | None = None
        """Hears of the requests of every swarm that starts from now on."""
        self.earlier = Tally()
        """Counted in earlier swarms of this process and before the last reset."""
        self.directory: RunDirectory | None = None
        self.server = ServerWatch(self._take_sample, self._host_is_gone)
        self.rag = RagWatch(self._rag_is_gone)
        self.roll: WorkerRoll | None = None
        self.stats_reset_s: float | None = None
        self.host_died = False
        self.interrupted = False
        self.exit_code: int | None = None
        self.is_stopping = False
        self._is_closing = False
        self._closed = Event()
        self.preparation: Preparation | None = None
        self.plan: Plan | None = None
        self._ready: Preparation | None = None
        self._csv: LocustCsv | None = None
        self._flusher: gevent.Greenlet | None = None
        self.view = View(self)
        if isinstance(environment.runner, MasterRunner):
            self.roll = WorkerRoll(environment.runner, self.view.say)
        self._swarms = 0

    def prepare(self, values: Mapping[str, Any] | None = None, host: str | None = None) -> None:
        """Check everything a swarm needs and make caches cold, before it starts.

        Raises KvswarmError; blocks only the calling greenlet.
        """
        options = vars(self.environment.parsed_options) | dict(values or {})
        batched = sends_batches(self.environment.user_classes)
        if self.roll is not None:  # more may be there than were expected
            options["expect_workers"] = max(options["expect_workers"], len(self.roll.present()))
        self._ready = prepare(options, host or self.environment.host, self.supervisor, batched)
        for note in self._ready.notes:
            self.view.say(note)

    def start(self) -> None:
        """Locust's `test_start`: open the run and let the processes know the plan."""
        if self._ready is None and not self._prepare_now():
            return
        self.preparation, self._ready = self._ready, None
        assert self.preparation is not None
        if self.roll is not None:
            self.roll.await_clocks()
        self._swarms += 1
        self.host_died, self.interrupted = False, False
        self.exit_code, self.stats_reset_s = None, None
        warmup_s = self.preparation.options.warmup_s or 0.0
        self.server = ServerWatch(self._take_sample, self._host_is_gone, warmup_s)
        self.rag = RagWatch(self._rag_is_gone)
        self.plan = make_plan(self, self.preparation)
        self._check_shares(self.preparation, self.plan)
        self.environment.stop_timeout = self._drain_s()
        self._open_run(self.preparation, self.plan)
        clock = RunClock(self.plan.start_unix_s)
        self.server.open(self.plan.url, self.supervisor.facts, clock)
        if self.preparation.rag is not None:
            self.rag.open(self.preparation.rag.url)
        if self.roll is not None:
            self.roll.start(self.plan)
        else:
            client_id = self.environment.runner.client_id
            self.stage.open(self.plan, self.ledger, client_id, self._end_when_spent)
        self.view.open()

    def give_up(self, reason: str) -> None:
        """End a swarm that could not start."""
        self.view.say(f"the swarm cannot start: {reason}")
        self.server.close()
        self.rag.close()
        if self._flusher is not None:
            self._flusher.kill()
        self.plan = None
        self._end()

    def stopping(self) -> None:
        """Locust's `test_stopping`: send nothing new, wait for those Locust does not wait for."""
        if self.plan is None:
            return
        self.is_stopping = True
        if self.roll is not None:
            self.roll.drain(self.environment.stop_timeout or 0.0)
        else:
            self.stage.stop_sending()
            self.stage.drain()

    def stopped(self) -> None:
        """Locust's `test_stop`: every process has drained; close the run."""
        if self._is_closing:
            self._closed.wait(CLOSING_S)  # whoever comes second, as by Ctrl-C, ends the process
            return
        if self.plan is None:
            return
        self._is_closing = True
        self._closed.clear()
        try:
            self._close_run()
        finally:
            self.plan, self._flusher, self._csv = None, None, None
            self.is_stopping = self._is_closing = False
            self._closed.set()

    def take_delta(self, environment: Any, msg: Any) -> None:
        """A worker's rows and statistics; those of a run that is closed come too late."""
        if self.plan is not None and msg.data["run"] == self.plan.start_unix_s:
            self.ledger.merge(msg.data)

    def worker_spent(self, client_id: str) -> None:
        """A worker has sent its share of `--batches`: the run ends when all have."""
        if self.roll is not None:
            self.roll.spent(client_id)
            self._end_when_spent()

    def reset(self) -> None:
        """Locust's statistics were reset: ours follow, and the summary says from when it counts."""
        self.earlier.merge(self.ledger.counts.take().whole)
        if self.plan is not None:
            self.stats_reset_s = RunClock(self.plan.start_unix_s).now_s()

    def _check_shares(self, ready: Preparation, plan: Plan) -> None:
        """Workers may have come since it was prepared. A shape does not end as it begins."""
        if self.environment.shape_class is None:
            users = self.environment.runner.target_user_count
            check_shares(users, len(plan.workers), ready.options, ready.batched)

    def _prepare_now(self) -> bool:
        try:
            self.prepare()
        except KvswarmError as error:
            logger.error("%s", error)
            return False
        return True

    def _drain_s(self) -> float:
        assert self.preparation is not None
        asked = self.environment.parsed_options.stop_timeout
        return float(asked or self.preparation.options.drain_s)

    def _open_run(self, ready: Preparation, plan: Plan) -> None:
        path = swarm_directory(self.environment, ready.options.out, self._swarms)
        self.directory = open_directory(path, plan.batched) if path is not None else None
        self.earlier.merge(self.ledger.tally)
        rule = SaturationRule(max_lag_ms=ready.options.max_lag_ms)
        self.ledger = RunLedger(self.directory, self.listener, ready.options.warmup_s, rule)
        if self.directory is not None and path is not None:
            self.directory.describe(describe_run(self, ready, plan))
            self._csv = LocustCsv(self.environment, path)
        self._flusher = gevent.spawn(self._flush_for_ever)

    def _flush_for_ever(self) -> None:
        while True:
            gevent.sleep(0.5)
            self.ledger.flush()
            forget_seconds(self.environment.stats)
            if self.roll is not None and not self.is_stopping:
                self.roll.look()
                self._end_when_spent()

    def _end_when_spent(self) -> None:
        """End once all `--batches` are sent; a lost worker may have been the last to wait for."""
        if not self.is_stopping and (self.roll is None or self.roll.all_spent):
            self._end()

    def _close_run(self) -> None:
        self.stage.close()
        self.server.close()
        self.rag.close()
        if self._flusher is not None:
            self._flusher.kill()
        if self._csv is not None:
            self._csv.close()
        self.view.close()
        # Imported here: no swarm waits at its start for what is needed at its end.
        from loadgen.swarm.leading.closing import close_run

        self.exit_code = close_run(self)

    def _take_sample(self, sample: ServerSample) -> None:
        if self.directory is not None:
            self.directory.server_metrics.append([astuple(sample)])

    def _host_is_gone(self) -> None:
        self.host_died = True
        self.view.say(f"the host {self.plan.url if self.plan else ''} is gone: ending the run")
        self._end()

    def _rag_is_gone(self) -> None:
        ready = self.preparation
        if self.is_stopping or ready is None or ready.rag is None:
            return  # a service of ours may go while the last requests are finished
        self.host_died = True
        kind = ready.options.labels.upper()
        self.view.say(f"the {kind} service {ready.rag.url} is gone: ending the run")
        self._end()

    def _end(self) -> None:
        """End the swarm as `-t` does."""
        runner = self.environment.runner
        headless = self.environment.parsed_options.headless
        gevent.spawn(runner.quit if headless else runner.stop)
