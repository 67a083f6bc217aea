"""StopTest in a swarm of several processes, and workers that would outlive their leader."""

import logging
import os
from typing import Any

import gevent
from locust import events
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING, MasterRunner, WorkerRunner

from loadgen.swarm.engine import Engine

LEADER_CHECK_S = 0.5
"""How often a forked worker looks whether its leader still lives."""

STOP_TEST = "async_user_stop_test"
"""The message by which a worker passes on StopTest to its master."""

logger = logging.getLogger(__name__)

_importer_pid = os.getpid()  # the leader's: `--processes` forks after the import


def ask_to_stop_test(environment: Any) -> None:
    """A user wants the whole test to end; a worker asks its master."""
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.send_message(STOP_TEST)
    else:
        gevent.spawn(_stop_test, environment)


def _stop_test(environment: Any, **_: Any) -> None:
    """End the whole test, once, however many users ask for it."""
    runner, options = environment.runner, environment.parsed_options
    if runner.state in (STATE_STOPPING, STATE_CLEANUP, STATE_STOPPED):
        return
    if options is not None and options.headless:
        runner.quit()
    else:
        runner.stop()


@events.init.add_listener
def _join_swarm(environment: Any, runner: Any, **_: Any) -> None:
    if isinstance(runner, MasterRunner):
        runner.register_message(STOP_TEST, _stop_test, concurrent=True)
    elif isinstance(runner, WorkerRunner) and os.getpid() != _importer_pid:
        gevent.spawn(_quit_with_leader, runner)


def _quit_with_leader(runner: WorkerRunner) -> None:
    """End a forked worker whose leader was killed; it would go on loading the host.

    Linux's parent-death signal comes once for each of the leader's threads, and a second SIGTERM
    cuts Locust's shutdown short.
    """
    while os.getppid() == _importer_pid:
        gevent.sleep(LEADER_CHECK_S)
    logger.info("this worker stops: the process that started it is gone")
    runner.quit()


@events.quit.add_listener
def _leave_swarm(**_: Any) -> None:
    Engine.close_process()
