"""A swarm in progress: what is its own from its start to its end."""

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from yarl import URL

from loadgen.compare.run_gate import RunGate
from loadgen.runs.directory import open_directory
from loadgen.stats.clock import RunClock
from loadgen.stats.self_watch import SaturationRule
from loadgen.stats.server_counters import ServerSample
from loadgen.swarm.leading.opening import describe_run
from loadgen.swarm.leading.preparation import Preparation
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.leading.watches import FleetWatch, ServerWatch, ServiceWatch, sources_of
from loadgen.swarm.leading.worker_registry import RunWorkers
from loadgen.swarm.options.swarm_options import request_headers
from loadgen.swarm.sending.ledger import Listener, RunLedger
from loadgen.swarm.sending.plan import Plan
from loadgen.swarm.sending.stage import Stage
from loadgen.swarm.showing.locust_csv import LocustCsv
from loadgen.swarm.showing.stats_rows import forget_seconds
from loadgen.targets.fleet import EngineDeath

FLUSH_EVERY_S = 0.5
CUT_TIMEOUT_S = 1.0
"""How long requests in flight may go on after Ctrl-C or SIGTERM, or for a host that is gone."""
CLOSING_S = 60.0
"""How long the end of the process may wait for a run that is being closed."""


class SwarmRun:
    """Made when a swarm starts and dropped for the next one: until then its end can be looked at.

    `workers` is None in a single process. `say` tells the user a line.
    """

    def __init__(
        self,
        *,
        environment: Any,
        preparation: Preparation,
        plan: Plan,
        supervisor: Supervisor,
        stage: Stage,
        workers: RunWorkers | None,
        folder: Path | None,
        listener: Listener | None,
        say: Callable[[str], None],
    ) -> None:
        options = preparation.options
        self.environment = environment
        self.preparation = preparation
        self.plan = plan
        self.clock = RunClock(plan.start_unix_s)
        self.supervisor = supervisor
        self.workers = workers
        self.directory = open_directory(folder, plan.batched) if folder is not None else None
        rule = SaturationRule(max_lag_ms=options.max_lag_ms)
        self.ledger = RunLedger(
            self.directory, listener, options.warmup_s, rule, options.max_silence_s
        )
        self.server = ServerWatch(self._take_sample, self._host_is_gone, options.warmup_s or 0.0)
        self.fleet = FleetWatch(supervisor, self._engine_died, self._end_for)
        self.stats_reset_s: float | None = None
        self.host_died = False
        self.interrupted = False
        self.is_stopping = False
        self.is_over = False
        self.exit_code: int | None = None
        self.gate: RunGate | None = None
        """What became of it, once the run is over; None without one."""
        self._rag = ServiceWatch(self._rag_is_gone, options.max_silence_s)
        self._cache = ServiceWatch(self._cache_is_gone, options.max_silence_s)
        self._stage = stage
        self._say = say
        self._csv: LocustCsv | None = None
        self._flusher: gevent.Greenlet | None = None
        self._is_faulty = False
        self._is_closing = False
        self._closed = Event()

    @property
    def users(self) -> int:
        """How many are there at this moment."""
        return int(self.environment.runner.user_count)

    @property
    def now_s(self) -> float:
        """Seconds since its start."""
        return self.clock.now_s()

    @property
    def fault(self) -> str | None:
        """Why its directory can be written no more, None while it can."""
        return None if self.directory is None else self.directory.fault

    def open(self) -> None:
        """Begin to watch and to record, and let the processes know the plan."""
        if self.directory is not None:
            users = self.environment.runner.target_user_count
            self.directory.describe(
                describe_run(self.preparation, self.plan, self.supervisor, users)
            )
            self._csv = LocustCsv(self.environment, self.directory)
        self._flusher = gevent.spawn(self._flush_for_ever)
        headers = request_headers(self.preparation.options)
        sources = sources_of(self.plan.url, self.supervisor.facts, headers, self.plan.model)
        silence = self.ledger.silence
        self.server.open(sources, self.clock, self.plan.url, lambda: silence.heard_s)
        self.fleet.open()
        if self.preparation.rag is not None:
            self._rag.open(self.preparation.rag.url)
        if sources.cache.metrics_url:
            asked = URL(sources.cache.metrics_url)
            self._cache.open(str(asked.origin()), asked.path)
        if self.workers is not None:
            self.workers.send_plan()
        else:
            client_id = self.environment.runner.client_id
            self._stage.open(self.plan, self.ledger, client_id, self.end_when_spent)

    def stop_sending(self) -> None:
        """Locust's `test_stopping`: send nothing new, wait for those Locust does not wait for."""
        self.is_stopping = True
        if self.workers is not None:
            self.workers.drain(self.environment.stop_timeout or 0.0)
        else:
            self._stage.stop_sending()
            self._stage.drain()

    def close(self, report: Callable[["SwarmRun"], None]) -> None:
        """Every process has drained: end all that watches and records, then report.

        Whoever comes second, as by Ctrl-C, waits for the first and ends the process.
        """
        if self._is_closing:
            self.await_close()
            return
        self._is_closing = True
        try:
            self._stage.close()
            self._end_watching()
            if self._csv is not None:
                self._csv.close()
            report(self)
        finally:
            self.is_over = True
            self._closed.set()

    def await_close(self) -> None:
        """Another greenlet closes it, or is about to."""
        self._closed.wait(CLOSING_S)

    def abandon(self) -> None:
        """It could not start."""
        self._end_watching()
        self.is_over = self._is_closing = True
        self._closed.set()

    def reset(self) -> None:
        """Locust's statistics were reset: the summary says from when it counts."""
        self.stats_reset_s = self.now_s
        self.server.reset()

    def end_when_spent(self) -> None:
        """End once all `--batches` are sent; a lost worker may have been the last to wait for."""
        if not self.is_stopping and (self.workers is None or self.workers.all_spent):
            end_swarm(self.environment)

    def _end_watching(self) -> None:
        self.server.close()
        self.fleet.close()
        self._rag.close()
        self._cache.close()
        if self._flusher is not None:
            self._flusher.kill()

    def _flush_for_ever(self) -> None:
        while True:
            gevent.sleep(FLUSH_EVERY_S)
            self.ledger.flush()
            if self.fault is not None and not self._is_faulty:
                self._is_faulty = True
                self._end_now(self.fault)
            forget_seconds(self.environment.stats)
            if self.workers is not None and not self.is_stopping:
                self.workers.look()
                if self.workers.fault is not None:
                    self._end_now(self.workers.fault)
                else:
                    self.end_when_spent()

    def _take_sample(self, sample: ServerSample) -> None:
        if self.directory is not None:
            self.directory.server_metrics.append([astuple(sample)])
        silence = self.ledger.silence
        if silence.is_too_long(self.now_s, sample.reachable is True):
            self._end_for(
                f"the host {self.plan.url} is not answering: nothing for {silence.limit_s:g} s,"
                " neither to requests nor at /metrics"
            )

    def _host_is_gone(self) -> None:
        self._end_for(f"the host {self.plan.url} is gone")

    def _rag_is_gone(self, said: str) -> None:
        service = self.preparation.rag
        if self.is_stopping or service is None:
            return  # a service of ours may go while the last requests are finished
        self._end_for(f"the {self.preparation.options.labels.upper()} service {service.url} {said}")

    def _cache_is_gone(self, said: str) -> None:
        """Replies may go on without it, which are not those of this target."""
        if not self.is_stopping:
            self._end_for(f"the cache behind the engine {said}")

    def _engine_died(self, death: EngineDeath) -> None:
        self._say(f"{death.engine} has died: the run goes on with the other engines")

    def _end_for(self, happening: str) -> None:
        if not self.host_died:
            self.host_died = True
            self._end_now(happening)

    def _end_now(self, happening: str) -> None:
        """Nothing is worth waiting for any more."""
        environment = self.environment
        environment.stop_timeout = min(environment.stop_timeout or 0.0, CUT_TIMEOUT_S)
        end_swarm(environment)
        self._say(f"{happening}: ending the run")


def end_swarm(environment: Any) -> None:
    """End the swarm as `-t` does."""
    runner, headless = environment.runner, environment.parsed_options.headless
    gevent.spawn(runner.quit if headless else runner.stop)
