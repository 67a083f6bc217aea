"""The process that owns a swarm: the single process, or the master of workers."""

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple
from functools import partial
from typing import Any

import gevent
from locust.runners import MasterRunner

from loadgen.errors import KvswarmError
from loadgen.runs.directory import RunDirectory, open_directory
from loadgen.stats.clock import RunClock
from loadgen.stats.memory import GpuMemory
from loadgen.stats.server_metrics import MetricsSources, ServerSample
from loadgen.swarm.closing import close_run
from loadgen.swarm.engine import Engine
from loadgen.swarm.ledger import RunLedger
from loadgen.swarm.locust_csv import LocustCsv
from loadgen.swarm.messages import DRAIN, PLAN
from loadgen.swarm.opening import describe_run, swarm_directory
from loadgen.swarm.plan import Plan
from loadgen.swarm.preparation import Preparation, prepare
from loadgen.swarm.scraper import Scraper
from loadgen.swarm.stage import Stage
from loadgen.swarm.supervisor import Supervisor
from loadgen.swarm.view import View

OPEN_LOOP_LEAD_S = 0.5
"""An open loop's first arrival is that far ahead, so that every process is there in time."""
WORKERS_GRACE_S = 10.0
"""How long after the drain time a worker may take to report that it has drained."""

logger = logging.getLogger(__name__)


class Leader:
    """Prepares swarms, runs them, closes their run directories, knows the exit code."""

    def __init__(self, environment: Any, stage: Stage) -> None:
        self.environment = environment
        self.stage = stage
        self.supervisor = Supervisor.of_process()
        self.ledger = RunLedger(None)
        self.directory: RunDirectory | None = None
        self.server_samples: list[ServerSample] = []
        self.host_died = False
        self.exit_code: int | None = None
        self.is_stopping = False
        self.preparation: Preparation | None = None
        self.plan: Plan | None = None
        self._ready: Preparation | None = None
        self._scraping: contextlib.AsyncExitStack | None = None
        self._csv: LocustCsv | None = None
        self._flusher: gevent.Greenlet | None = None
        self.view = View(self)
        self._draining: set[str] = set()
        self._swarms = 0

    @property
    def is_master(self) -> bool:
        """Whether workers do the work."""
        return isinstance(self.environment.runner, MasterRunner)

    def prepare(self, values: Mapping[str, Any] | None = None, host: str | None = None) -> None:
        """Check everything a swarm needs and make caches cold, before it starts.

        Raises KvswarmError; blocks only the calling greenlet.
        """
        options = vars(self.environment.parsed_options) | dict(values or {})
        self._ready = prepare(options, host or self.environment.host, self.supervisor)
        for note in self._ready.notes:
            self.view.say(note)

    def start(self) -> None:
        """Locust's `test_start`: open the run and let the processes know the plan."""
        if self._ready is None and not self._prepare_now():
            return
        self.preparation, self._ready = self._ready, None
        assert self.preparation is not None
        self._swarms += 1
        self.host_died, self.exit_code, self.server_samples = False, None, []
        self.plan = self._make_plan(self.preparation)
        self.environment.stop_timeout = self._drain_s()
        self._open_run(self.preparation, self.plan)
        self._start_scraping(self.plan)
        if self.is_master:
            self.environment.runner.send_message(PLAN, self.plan.to_wire())
        else:
            self.stage.open(self.plan, self.ledger, self.environment.runner.client_id)
        self.view.open()

    def stopping(self) -> None:
        """Locust's `test_stopping`: send nothing new, wait for those Locust does not wait for."""
        if self.plan is None:
            return
        self.is_stopping = True
        if self.is_master:
            self._drain_workers()
        else:
            self.stage.stop_sending()
            self.stage.drain()

    def stopped(self) -> None:
        """Locust's `test_stop`: every process has drained; close the run."""
        if self.plan is None or self.preparation is None:
            return
        try:
            self._close_run()
        finally:
            self.plan, self._scraping, self._flusher, self._csv = None, None, None, None
            self.is_stopping = False

    def take_delta(self, environment: Any, msg: Any) -> None:
        """A worker's rows and statistics."""
        self.ledger.merge(msg.data)

    def take_drained(self, environment: Any, msg: Any) -> None:
        """A worker has nothing in flight any more."""
        self._draining.discard(msg.node_id)

    def reset(self) -> None:
        """Locust's statistics were reset: ours follow."""
        self.ledger.tally.clear()

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

    def _make_plan(self, ready: Preparation) -> Plan:
        runner = self.environment.runner
        workers = self._workers() if self.is_master else [runner.client_id]
        lead_s = OPEN_LOOP_LEAD_S if ready.options.arrivals != "closed" else 0.0
        return Plan(
            start_unix_s=time.time() + lead_s,
            url=ready.facts.url,
            model=ready.facts.model,
            is_vllm=ready.facts.is_vllm,
            options=ready.raw_options,
            workers={client: index for index, client in enumerate(workers)},
            lengths=asdict(ready.lengths),
            uncapped=ready.options.arrivals != "closed" and runner.target_user_count == 0,
        )

    def _open_run(self, ready: Preparation, plan: Plan) -> None:
        path = swarm_directory(self.environment, ready.options.out, self._swarms)
        self.directory = open_directory(path) if path is not None else None
        self.ledger = RunLedger(self.directory)
        if self.directory is not None and path is not None:
            self.directory.describe(describe_run(self, ready, plan))
            self._csv = LocustCsv(self.environment, path)
        self._flusher = gevent.spawn(self._flush_for_ever)

    def _flush_for_ever(self) -> None:
        while True:
            gevent.sleep(0.5)
            self.ledger.flush()

    def _close_run(self) -> None:
        self.stage.close()
        if self._scraping is not None:
            Engine.of_process().run(self._scraping.aclose())
            Engine.of_process().drain()
        if self._flusher is not None:
            self._flusher.kill()
        if self._csv is not None:
            self._csv.close()
        self.view.close()
        self.exit_code = close_run(self)

    def _start_scraping(self, plan: Plan) -> None:
        facts = self.supervisor.facts
        sources = MetricsSources(
            engine_url=plan.url,
            lmcache_url=facts.get("lmcache_url"),
            engine_pid=facts.get("engine_pid"),
            lmcache_pid=facts.get("lmcache_pid"),
            gpu=GpuMemory.open() if facts else None,
        )
        engine = Engine.of_process()
        scraper = Scraper(
            sources,
            RunClock(plan.start_unix_s),
            on_sample=lambda sample: engine.post(partial(self._take_sample, sample)),
            on_death=lambda: engine.post(self._host_is_gone),
        )
        self._scraping = contextlib.AsyncExitStack()
        engine.run(self._scraping.enter_async_context(scraper.running()))

    def _take_sample(self, sample: ServerSample) -> None:
        self.server_samples.append(sample)
        if self.directory is not None:
            self.directory.server_metrics.append([astuple(sample)])

    def _host_is_gone(self) -> None:
        self.host_died = True
        self.view.say(f"the host {self.plan.url if self.plan else ''} is gone: ending the run")
        runner = self.environment.runner
        headless = self.environment.parsed_options.headless
        gevent.spawn(runner.quit if headless else runner.stop)

    def _workers(self) -> list[str]:
        clients = self.environment.runner.clients
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def _drain_workers(self) -> None:
        runner = self.environment.runner
        self._draining = set(self._workers())
        runner.send_message(DRAIN, {"stop_timeout": self.environment.stop_timeout})
        deadline = time.monotonic() + self.environment.stop_timeout + WORKERS_GRACE_S
        while self._draining and time.monotonic() < deadline:
            gevent.sleep(0.05)
            self._draining.intersection_update(self._workers())  # one may have been lost
        if self._draining:
            self.view.say(f"{len(self._draining)} workers did not report the end of their requests")
