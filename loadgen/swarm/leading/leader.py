"""The process that owns swarms: the single process, or the master of workers."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from locust.dispatch import UsersDispatcher
from locust.runners import MasterRunner
from yarl import URL

from loadgen.client.host import base_url
from loadgen.errors import HostError, KvswarmError
from loadgen.stats.tally import Tally
from loadgen.swarm.leading.opening import make_plan, swarm_directory
from loadgen.swarm.leading.preparation import Preparation, check_shares, prepare, sends_batches
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.leading.swarm_run import SwarmRun, end_swarm
from loadgen.swarm.leading.worker_registry import RunWorkers, WorkerRegistry
from loadgen.swarm.options.swarm_options import FOREIGN_HOST
from loadgen.swarm.sending.ledger import Listener
from loadgen.swarm.sending.plan import Plan
from loadgen.swarm.sending.stage import Stage
from loadgen.swarm.showing.view import View

logger = logging.getLogger(__name__)


class Leader:
    """Prepares, starts and stops runs, one after the other."""

    def __init__(self, environment: Any, stage: Stage) -> None:
        self.environment = environment
        self.supervisor = Supervisor.of_process()
        self.view = View()
        self.run: SwarmRun | None = None
        """The last one that was started; it may be over."""
        self.listener: Listener | None = None
        """Hears of the requests of every swarm that starts from now on."""
        self.earlier = Tally()
        """Counted in earlier swarms of this process and before the last reset."""
        self.is_leaving = False
        """The process is about to end, and so are its workers."""
        is_master = isinstance(environment.runner, MasterRunner)
        self.registry = WorkerRegistry(environment.runner) if is_master else None
        if is_master:
            environment.dispatcher_class = partial(RunDispatcher, self._takes_part)
        self._stage = stage
        # Now, as the web UI writes what its form says into the same options.
        self._own_hosts = frozenset(map(_address, own_hosts(environment)))
        self._ready: Preparation | None = None
        self._swarms = 0

    @property
    def current(self) -> SwarmRun | None:
        """The run in progress, None between two."""
        return self.run if self.run is not None and not self.run.is_over else None

    def prepare(
        self,
        values: Mapping[str, Any] | None = None,
        host: str | None = None,
        user_classes: list[type] | None = None,
    ) -> None:
        """Check everything a swarm needs and make caches cold, before it starts.

        `user_classes` are those it will have. Raises KvswarmError; only the calling greenlet waits.
        """
        options = vars(self.environment.parsed_options) | dict(values or {})
        batched = sends_batches(user_classes or self.environment.user_classes)
        if self.registry is not None:  # more may be there than were expected
            options["expect_workers"] = max(options["expect_workers"], len(self.registry.present()))
        host = host or self.environment.host
        options[FOREIGN_HOST] = bool(host) and _address(host) not in self._own_hosts
        self._ready = prepare(options, host, self.supervisor, batched)
        for note in self._ready.notes:
            self.view.say(note)

    def start(self) -> None:
        """Locust's `test_start`: open a run."""
        if self._ready is None and not self._prepare_now():
            return
        ready, self._ready = self._ready, None
        assert ready is not None
        if self.registry is not None:
            self.registry.await_clocks()
        self._swarms += 1
        plan = make_plan(self.environment, self.registry, ready)
        self._check_shares(ready, plan)
        self.environment.stop_timeout = ready.options.drain_s
        run = self._run(ready, plan)
        if self.run is not None:
            self.earlier.merge(self.run.ledger.tally)
        if run.workers is not None and self.is_leaving:
            run.workers.let_go()
        self.run = run
        self.run.open()
        self.view.open(self.run)

    def give_up(self, reason: str) -> None:
        """End a swarm that could not start."""
        self.view.say(f"the swarm cannot start: {reason}")
        if self.current is not None:
            self.current.abandon()
        end_swarm(self.environment)

    def stopping(self) -> None:
        """Locust's `test_stopping`."""
        if self.current is not None:
            self.current.stop_sending()

    def stopped(self) -> None:
        """Locust's `test_stop`: every process has drained."""
        if self.current is not None:
            self.current.close(self._report)
        if self.registry is not None and not self.registry.present():
            end_swarm(self.environment)  # Locust would wait for other workers

    def take_delta(self, environment: Any, msg: Any) -> None:
        """A worker's rows and statistics; those of a run that is closed come too late."""
        run = self.current
        if run is not None and msg.data["run"] == run.plan.start_unix_s:
            run.ledger.merge(msg.data)

    def worker_spent(self, client_id: str) -> None:
        """A worker has sent its share of `--batches`: the run ends when all have."""
        run = self.current
        if run is not None and run.workers is not None:
            run.workers.spent(client_id)
            run.end_when_spent()

    def reset(self) -> None:
        """Locust's statistics were reset: ours follow."""
        if self.run is not None:
            self.earlier.merge(self.run.ledger.counts.take().whole)
        if self.current is not None:
            self.current.reset()

    def _run(self, ready: Preparation, plan: Plan) -> SwarmRun:
        registry = self.registry
        return SwarmRun(
            environment=self.environment,
            preparation=ready,
            plan=plan,
            supervisor=self.supervisor,
            stage=self._stage,
            workers=RunWorkers(registry, plan, self.view.say) if registry is not None else None,
            folder=swarm_directory(self.environment, ready.options.out, self._swarms),
            listener=self.listener,
            say=self.view.say,
        )

    def _takes_part(self, client_id: str) -> bool:
        """Whether a worker has a share of the run in progress, or may have one of the next."""
        return self.current is None or client_id in self.current.plan.workers

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

    def _report(self, run: SwarmRun) -> None:
        # Imported here: no swarm waits at its start for what is needed at its end.
        from loadgen.swarm.leading.closing import close_run

        try:
            self.view.close()
        finally:
            close_run(run, self.view)


class RunDispatcher(UsersDispatcher):
    """Locust's, which would move users of a run to a worker that has no share of it."""

    def __init__(
        self, takes_part: Callable[[str], bool], worker_nodes: list[Any], user_classes: list[Any]
    ) -> None:
        self._takes_part = takes_part
        ours = [node for node in worker_nodes if takes_part(node.id)]
        super().__init__(ours or worker_nodes, user_classes)

    def add_worker(self, worker_node: Any) -> None:
        if self._takes_part(worker_node.id):
            super().add_worker(worker_node)

    def remove_worker(self, worker_node: Any) -> None:
        if self._takes_part(worker_node.id):
            super().remove_worker(worker_node)


def own_hosts(environment: Any) -> Iterator[str]:
    """Those that whoever started this process named: they alone get key, headers and extra body."""
    options = environment.parsed_options
    classes = [*environment.user_classes, *(environment.available_user_classes or {}).values()]
    named = (environment.host, options.host, *(getattr(each, "host", None) for each in classes))
    yield from filter(None, (*named, *(options.key_host or ())))


def _address(host: str) -> str:
    """In one spelling; a text that is no address stands for itself."""
    try:
        url = URL(base_url(host))
        return f"{url.scheme}://{url.host}:{url.port}{url.path}"
    except (HostError, ValueError):
        return host
