"""Where kvswarm is plugged into Locust: importing this module registers its listeners."""

import atexit
import functools
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gevent
from locust import argument_parser, events
from locust.runners import STATE_INIT, WorkerRunner

from loadgen.errors import KvswarmError, UsageError
from loadgen.swarm.engine import Engine
from loadgen.swarm.leading.clock_offset import ClockOffset
from loadgen.swarm.leading.follower import Follower
from loadgen.swarm.leading.leader import Leader
from loadgen.swarm.leading.leaving import (
    Leaving,
    LivingUsers,
    UserCounts,
    WorkerLeaving,
    interrupt_main_greenlet,
    leave_without_workers,
)
from loadgen.swarm.leading.opening import OPEN_LOOP_LEAD_S
from loadgen.swarm.leading.preparation import check_offline, described_users, sends_batches
from loadgen.swarm.leading.supervisor import CHECK_VARIABLE, Supervisor
from loadgen.swarm.leading.worker_registry import RunWorkers, WorkerRegistry
from loadgen.swarm.options.flags import add_options
from loadgen.swarm.options.ours import bound_run_time, no_users
from loadgen.swarm.options.swarm_options import default_users, own_options
from loadgen.swarm.process import end_forked_workers, is_forked
from loadgen.swarm.sending import plan as message
from loadgen.swarm.sending.stage import Stage
from loadgen.swarm.showing.view import fit_log
from loadgen.swarm.user import AsyncUser
from rag_store.cli.output import complaint
from rag_store.cli.suggestion import nearest

DASHBOARDS = ("dashboards.live:open_live_tab", "dashboards.exporter:open_exporter")
"""What shows a swarm beside the terminal, each called once with the leader. Named and not imported,
since they stand above this package."""
FIRST_WORD_S, NEXT_WORD_S = 5.0, 10.0
"""When workers that are missing are told, and how long until they are again."""


def stage_of(environment: Any) -> Stage:
    """The stage of this Locust process."""
    stage: Stage = environment.kvswarm_stage
    return stage


def set_defaults(**values: Any) -> None:
    """Other defaults of kvswarm's options, for the locustfile that says so: `labels="rag"`."""

    def change(parser: Any, **_: Any) -> None:
        known = {action.dest for action in parser._actions}
        for name in sorted(values.keys() - known):
            meant = nearest(name, known)
            mend = f"did you mean {meant}?" if meant else "see --help"
            parser.error(f"set_defaults names no option {name!r}: {mend}")
        parser.set_defaults(**values)

    events.init_command_line_parser.add_listener(change)


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: Any) -> None:
    add_options(parser)
    bound_run_time(parser)


@events.init.add_listener
def _init(environment: Any, runner: Any, web_ui: Any, **_: Any) -> None:
    # gevent's clock stood still while the locustfile was imported, which would shorten -t.
    gevent.get_hub().loop.update_now()
    runner.user_greenlets = LivingUsers()
    environment.kvswarm_stage = Stage(environment)
    fit_log()
    if isinstance(runner, WorkerRunner):
        _follow(environment, runner)
    else:
        _lead(environment, runner, web_ui)


def _follow(environment: Any, runner: Any) -> None:
    parse_defaults_once()
    if is_forked():
        environment.events.quitting.add_listener(WorkerLeaving(environment))
    else:
        interrupt_main_greenlet()
        environment.events.quitting.add_listener(lambda **_: _quit_worker(environment))
    follower = Follower(environment, environment.kvswarm_stage)
    runner.register_message(message.PLAN, follower.take_plan)
    runner.register_message(message.CLOCK, follower.take_time)
    runner.register_message(message.DRAIN, follower.take_drain, concurrent=True)
    environment.events.test_stopping.add_listener(lambda **_: follower.stopping())
    environment.events.test_stop.add_listener(lambda **_: follower.stopped())


def parse_defaults_once() -> None:
    """A worker of Locust parses its own defaults anew for each option of its master: more than half
    a second of CPU between the start of a run and the first user."""
    argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
    argument_parser.default_args_dict()


def _lead(environment: Any, runner: Any, web_ui: Any) -> None:
    interrupt_main_greenlet()
    if stop_timeout_s := environment.parsed_options.stop_timeout:
        # Locust's name for the same time, which decides what is late, too.
        environment.parsed_options.drain = float(stop_timeout_s)
    if environment.parsed_options.processes:
        atexit.register(end_forked_workers)
    leader = Leader(environment, environment.kvswarm_stage)
    hooks = environment.events
    if leader.registry is not None:
        _hear_workers(runner, leader, leader.registry)
    users = UserCounts(runner)
    hooks.test_start.add_listener(lambda **_: _start(environment, leader))
    hooks.test_stopping.add_listener(lambda **_: users.remember())
    hooks.test_stopping.add_listener(lambda **_: leader.stopping())
    hooks.test_stop.add_listener(lambda **_: users.give_back())
    hooks.test_stop.add_listener(lambda **_: leader.stopped())
    hooks.reset_stats.add_listener(lambda **_: leader.reset())
    hooks.spawning_complete.add_listener(
        lambda **_: leader.reset() if environment.reset_stats else None
    )
    hooks.quitting.add_listener(Leaving(environment, leader))
    if web_ui is not None:
        from loadgen.swarm.leading.web import (
            prepare_before_swarm,  # and Flask: a headless run starts fast
        )

        prepare_before_swarm(leader, web_ui)
    _or_exit(environment, partial(_require_users, environment))
    _or_exit(environment, partial(_open_dashboards, leader))
    if web_ui is None or environment.parsed_options.autostart:
        _or_exit(environment, partial(_prepare, environment, leader))
        if environment.parsed_options.processes:
            count = environment.parsed_options.processes
            watch = gevent.spawn(leave_without_workers, leader, count)
            atexit.register(watch.kill)  # before the workers are ended
        elif leader.registry is not None:
            gevent.spawn(_tell_missing_workers, leader, runner)


def _tell_missing_workers(leader: Leader, runner: Any) -> None:
    """Locust waits for workers without a word."""
    options = leader.environment.parsed_options
    gevent.sleep(FIRST_WORD_S)
    while (
        runner.state == STATE_INIT and (here := len(runner.clients.ready)) < options.expect_workers
    ):
        leader.view.say(
            f"{here} of {options.expect_workers} workers are here: start each with kvswarm run"
            f" --worker --master-host HOST --master-port {options.master_bind_port}"
        )
        gevent.sleep(NEXT_WORD_S)


def _hear_workers(runner: Any, leader: Leader, registry: WorkerRegistry) -> None:
    def tell(act: Callable[[RunWorkers, Any], None]) -> Callable[..., None]:
        """Have those of the run in progress act on a message, where there is one."""

        def act_on(msg: Any, **_: Any) -> None:
            run = leader.current
            if run is not None and run.workers is not None:
                act(run.workers, msg)

        return act_on

    hear = runner.register_message
    hear(message.DELTA, leader.take_delta)
    hear(message.SPENT, lambda msg, **_: leader.worker_spent(msg.node_id))
    hear(message.DRAINED, tell(lambda workers, msg: workers.drained(msg.node_id)))
    hear(message.FAILED, tell(lambda workers, msg: workers.failed(msg.node_id, **msg.data)))
    hear(message.CLOCK, lambda msg, **_: registry.tell_time(msg.node_id, msg.data))
    offset = tell(lambda workers, msg: workers.corrected(msg.node_id, ClockOffset(**msg.data)))
    hear(message.CLOCK_OFFSET, offset)
    joined = tell(lambda workers, client_id: workers.joined(client_id))
    leader.environment.events.worker_connect.add_listener(lambda client_id, **_: joined(client_id))


def _start(environment: Any, leader: Leader) -> None:
    """Start the swarm; where that fails, end it as failed: its users would wait for ever."""
    try:
        leader.start()
    except Exception as error:
        environment.events.user_error.fire(
            user_instance=None, exception=error, tb=error.__traceback__
        )
        leader.give_up(str(error) if isinstance(error, KvswarmError) else repr(error))


def _or_exit(environment: Any, step: Callable[[], None]) -> None:
    """Take a step; what the user can mend ends this process with one line."""
    try:
        step()
    except KvswarmError as error:
        print(complaint(error), file=sys.stderr)  # noqa: T201
        Engine.close_process()
        end_forked_workers(0)
        sys.exit(error.exit_code)


def _require_users(environment: Any) -> None:
    """Raise UsageError where a directory for a run is named and nobody is there who fills it."""
    classes = environment.user_classes
    if environment.parsed_options.out and classes and not any(map(_is_ours, classes)):
        raise UsageError(no_users(str(environment.parsed_options.locustfile)))


def _is_ours(user_class: type) -> bool:
    return issubclass(user_class, AsyncUser)


def _open_dashboards(leader: Leader) -> None:
    for dashboard in DASHBOARDS:
        module, _, function = dashboard.partition(":")
        getattr(import_module(module), function)(leader)


def _prepare(environment: Any, leader: Leader) -> None:
    _set_size(environment)
    if checked := os.environ.get(CHECK_VARIABLE):
        values = vars(environment.parsed_options)
        batched = sends_batches(environment.user_classes)
        check_offline(values, Supervisor.of_process(), batched)
        users = described_users(environment, int(values["seed"]))
        content = own_options(values) | {"swarm": users}
        Path(checked).write_text(json.dumps(content), encoding="utf-8")
        sys.exit(0)
    leader.prepare()
    _add_lead(environment.parsed_options)
    gevent.get_hub().loop.update_now()


def _add_lead(options: Any) -> None:
    """Locust counts `--run-time` from its own start, an open loop begins a little later."""
    if options.headless and options.run_time and options.arrivals != "closed":
        options.run_time += OPEN_LOOP_LEAD_S


def _set_size(environment: Any) -> None:
    """What Locust would set later, when checks and `run.json` have already read it."""
    options = environment.parsed_options
    if environment.shape_class is not None:
        return
    if options.num_users is None:
        options.num_users = default_users(options.arrivals)
    if options.spawn_rate is None:  # the cap of an open loop is there from its first arrival
        options.spawn_rate = 1 if options.arrivals == "closed" else max(1, options.num_users)


def _quit_worker(environment: Any) -> None:
    environment.process_exit_code = 0
