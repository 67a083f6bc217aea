"""How a Locust process leaves: by the end of its time, by Ctrl-C or by SIGTERM.

A terminal's Ctrl-C reaches the leader and the workers of `--processes` alike. The leader alone
acts on it: its workers end when it says so, with all their rows handed over.
"""

import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Group
from locust.runners import STATE_INIT, STATE_STOPPED, MasterRunner

from loadgen.errors import KvswarmError
from loadgen.swarm.leading.leader import Leader
from loadgen.swarm.leading.swarm_run import CUT_TIMEOUT_S
from loadgen.swarm.process import count_forked_workers, end_forked_workers

OTHER_GREENLET_S = 30.0
WORKERS_CHECK_S = 0.5


class Leaving:
    """Locust's `quitting`: whatever still runs is cut off, recorded and summed up.

    On SIGTERM Locust shuts down in a greenlet of its own, and once that has stopped the runner
    its main greenlet starts to shut down as well. The first one leaves for both.
    """

    def __init__(self, environment: Any, leader: Leader) -> None:
        self._environment = environment
        self._leader = leader
        self._first: gevent.Greenlet | None = None

    def __call__(self, **_: Any) -> None:
        self._leader.is_leaving = True
        if self._first is None:
            self._first = gevent.getcurrent()
            self._end_swarm()
        elif self._first is not gevent.getcurrent():
            Event().wait(OTHER_GREENLET_S)
        self._set_exit_code()

    def _end_swarm(self) -> None:
        run = self._leader.current
        if run is None:
            return
        run.interrupted = True
        environment = self._environment
        environment.stop_timeout = min(environment.stop_timeout or 0.0, CUT_TIMEOUT_S)
        state = environment.runner.state
        if run.workers is not None and not run.is_stopping and state in (STATE_INIT, STATE_STOPPED):
            run.workers.let_go()  # nobody was told to spawn users yet
        if run.is_stopping and (run.workers or state == STATE_STOPPED):
            # Locust would not stop a second time, but quit under the greenlet that closes the run.
            run.stop_sending()
            run.await_close()
        environment.runner.quit()

    def _set_exit_code(self) -> None:
        environment, run = self._environment, self._leader.run
        code = None if run is None else run.exit_code
        if code is not None and environment.web_ui is None:
            environment.process_exit_code = code


def interrupt_main_greenlet() -> None:
    """Have SIGINT and SIGHUP, unless nohup has it ignored, raise KeyboardInterrupt in the main
    greenlet alone.

    Python would raise it in whatever greenlet runs at that moment, which then dies with a
    traceback while Locust goes on. A second signal while the first is dealt with does nothing.
    """
    main = gevent.get_hub().parent
    sent: list[int] = []

    def on_signal(number: int) -> None:
        if not sent:
            sent.append(number)
            gevent.kill(main, KeyboardInterrupt())

    for number in (signal.SIGINT, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            gevent.signal_handler(number, partial(on_signal, number))


def leave_without_workers(leader: Leader, count: int) -> None:
    """End the process where one of the forked workers is gone before the start: Locust would wait
    for it for ever."""
    while leader.run is None:
        if count_forked_workers() < count:
            error = KvswarmError(f"a worker of --processes {count} is gone before the start")
            end_forked_workers(0)
            gevent.kill(gevent.get_hub().parent, error)
            return
        gevent.sleep(WORKERS_CHECK_S)


class WorkerLeaving:
    """A worker of `--processes` leaves when its leader says so, or is gone.

    Signals that the whole process group gets would end it before its last rows are on their way.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        # Locust's own handler of SIGTERM comes later, beside this one.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            gevent.signal_handler(number, lambda: None)

    def __call__(self, **_: Any) -> None:
        """Locust's `quitting`, in the main greenlet or, on SIGTERM, in one of its own."""
        self._environment.process_exit_code = 0
        if gevent.getcurrent() is not gevent.get_hub().parent:
            Event().wait()  # the main greenlet ends the process


class LivingUsers(Group):  # type: ignore[misc]
    """Locust's users without those that have left: it takes these for broken, says so for each
    and stops fewer."""

    def __iter__(self) -> Iterator[gevent.Greenlet]:
        # One that has left stays in the group until the hub has told its end.
        return iter([user for user in self.greenlets if not user.dead])


class UserCounts:
    """Remembers the users of a swarm that ends.

    Locust counts them when all requests have drained; ours have left by then, each with its last.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._users: dict[str, int] = {}

    def remember(self) -> None:
        """Locust's `test_stopping`, before anything else hears of it."""
        is_master = isinstance(self._runner, MasterRunner)
        name = "reported_user_classes_count" if is_master else "user_classes_count"
        self._users = dict(getattr(self._runner, name))

    def give_back(self) -> None:
        """Locust's `test_stop`: what it counted itself is replaced."""
        self._runner.final_user_classes_count = self._users
