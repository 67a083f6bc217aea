"""`AsyncUser`: a Locust user whose tasks are `async def`, for any asyncio client."""

import asyncio
import contextlib
import inspect
import logging
import random
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import gevent
from gevent import GreenletExit
from locust import User, events
from locust.exception import (
    InterruptTaskSet,
    RescheduleTask,
    RescheduleTaskImmediately,
    StopTest,
    StopUser,
)
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING, MasterRunner, WorkerRunner
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from loadgen.swarm.engine import Engine, Flight
from loadgen.swarm.process import has_leader, is_forked

CANCEL_GRACE_S = 5.0
"""How long a cancelled user may take for its `finally` blocks before it is given up."""

ERROR_PAUSE_S = 0.01
"""A task that raises at once, without a wait time, must not flood Locust with tracebacks."""

logger = logging.getLogger(__name__)

AsyncTask = Callable[[Any], Awaitable[object]]

LEADER_CHECK_S = 0.5
"""How often a forked worker looks whether its leader still lives."""

STOP_TEST = "async_user_stop_test"
"""The message by which a worker passes on StopTest to its master."""


class NoTask(StopTest):
    """A user class has no task, by mistake or because `--tags` left none: the test ends."""


class AsyncUser(User):
    """A user that lives as one coroutine on the process's engine.

    `@task` weights, `wait_time`, tags, `on_start` and `on_stop` (plain or `async def`), StopUser,
    RescheduleTask and StopTest mean what they mean in Locust. Plain hooks run on gevent's side,
    where blocking calls are cooperative; coroutines run on uvloop, where they are not. Requests
    are reported with `fire_request`: Locust's own events belong to gevent's side.
    """

    abstract = True
    tasks: list[Any] = []  # noqa: RUF012  (Locust's metaclass fills it per class)
    _pause: asyncio.Future[None] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for task in cls.tasks:
            if not inspect.iscoroutinefunction(task):
                name = getattr(task, "__name__", repr(task))
                raise TypeError(f"{cls.__name__}.{name} must be `async def`: AsyncUser awaits it")

    def fire_request(self, **request: Any) -> None:
        """Report a request from a task; takes what `events.request.fire` takes."""
        Engine.of_process().post(partial(self.environment.events.request.fire, **request))

    async def one_task(self) -> None:
        """Pick a task by weight, run it and wait as `wait_time` says."""
        try:
            await self._play(self._pick_task())
        except (RescheduleTaskImmediately, InterruptTaskSet):
            await asyncio.sleep(0)
            return
        except RescheduleTask:
            pass
        except (StopUser, StopTest):
            raise
        except asyncio.CancelledError as error:
            if _cancelled_from_outside():
                raise
            await self._survive(error)
        except (Exception, SystemExit) as error:  # a user's end is not the swarm's
            await self._survive(error)
        await self.wait()

    async def wait(self) -> None:
        """Sleep as `wait_time` says; raises StopUser once Locust wants this user to stop."""
        wait_s = self.wait_time()
        if wait_s and self._state != LOCUST_STATE_STOPPING:
            await self._sleep(wait_s)
        else:
            await asyncio.sleep(0)
        if self._state == LOCUST_STATE_STOPPING:
            raise StopUser

    def stop(self, force: bool = False) -> bool:
        """Leave at once, or as soon as no task is under way; returns whether the user has left."""
        if force or self._state is None:
            return bool(super().stop(force))
        self._state = LOCUST_STATE_STOPPING
        Engine.of_process().call(self._wake)  # who begins a pause later sees the state first
        return False

    def run(self) -> None:  # type: ignore[misc]  # final in Locust; this is its asyncio twin
        """Live until stopped; runs in the greenlet that Locust gave this user."""
        self._state = LOCUST_STATE_RUNNING
        try:
            self._live_on_hub()
            self._run_plain(self.on_stop)
        except Exception as error:
            self._report(error)  # as in Locust, who failed to start is not stopped either

    def _live_on_hub(self) -> None:
        try:
            self._run_plain(self.on_start)
            self._fly()
        except (GreenletExit, StopUser):
            pass
        except StopTest as stop:
            self._end_test(stop)

    def _end_test(self, stop: StopTest) -> None:
        """A task has asked for the end of the test, or there is none; on the hub."""
        logger.error("%s", stop)
        if isinstance(stop, NoTask):  # as in Locust an exception, so that the run fails
            self._show(stop)
        ask_to_stop_test(self.environment)

    def _fly(self) -> None:
        flight: Flight[None] = Engine.of_process().start(self._live())
        try:
            flight.result()
        except GreenletExit:
            self._state = LOCUST_STATE_STOPPING  # for a task that swallows its cancellation
            flight.cancel()
            if not flight.join(CANCEL_GRACE_S):
                logger.warning("%s did not end within %g s", self, CANCEL_GRACE_S)
                return
            with contextlib.suppress(asyncio.CancelledError):  # it had not begun yet
                flight.result()

    def _run_plain(self, hook: Callable[[], object]) -> None:
        if not inspect.iscoroutinefunction(hook):
            hook()

    async def _live(self) -> None:
        reason: StopUser | StopTest | None = None
        try:
            await self._run_async(self.on_start)
            while self._state != LOCUST_STATE_STOPPING:
                await self.one_task()
        except asyncio.CancelledError:
            _forget_cancellation()  # killed by Locust: on_stop still runs, and may await
        except (StopUser, StopTest) as stop:
            reason = stop
        await self._run_async(self.on_stop)
        if reason is not None:
            raise reason

    async def _run_async(self, hook: Callable[[], Any]) -> None:
        if inspect.iscoroutinefunction(hook):
            await hook()

    def _pick_task(self) -> AsyncTask:
        if not self.tasks:
            raise NoTask(f"{type(self).__name__} has no task: decorate an `async def` with @task")
        chosen: AsyncTask = random.choice(self.tasks)
        return chosen

    async def _play(self, task: AsyncTask) -> None:
        await task(self)

    async def _sleep(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_later(wait_s, self._wake)
        try:
            if self._state != LOCUST_STATE_STOPPING:  # set before there was a pause to end
                await self._pause
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    async def _survive(self, error: BaseException) -> None:
        if not self.environment.catch_exceptions:
            raise error
        Engine.of_process().post(partial(self._report, error))
        await asyncio.sleep(ERROR_PAUSE_S)

    def _report(self, error: BaseException) -> None:
        """Put an exception where Locust shows it and into the log; on the hub."""
        self._show(error)
        logger.error("%s\n%s", error, "".join(traceback.format_exception(error)))

    def _show(self, error: BaseException) -> None:
        self.environment.events.user_error.fire(
            user_instance=self, exception=error, tb=error.__traceback__
        )


def _cancelled_from_outside() -> bool:
    """Whether this user was cancelled, and not merely something that its task awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _forget_cancellation() -> None:
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


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
    elif isinstance(runner, WorkerRunner) and is_forked():
        gevent.spawn(_quit_with_leader, runner)


def _quit_with_leader(runner: WorkerRunner) -> None:
    """End a forked worker whose leader was killed; it would go on loading the host.

    Linux's parent-death signal comes once for each of the leader's threads, and a second SIGTERM
    cuts Locust's shutdown short.
    """
    while has_leader():
        gevent.sleep(LEADER_CHECK_S)
    logger.info("this worker stops: the process that started it is gone")
    runner.quit()


@events.quit.add_listener
def _leave_swarm(**_: Any) -> None:
    Engine.close_process()
