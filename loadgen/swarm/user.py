"""`AsyncUser`: a Locust user whose tasks are `async def`, for any asyncio client."""

import asyncio
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
from locust.user.task import (
    LOCUST_STATE_RUNNING,
    LOCUST_STATE_STOPPING,
    LOCUST_STATE_WAITING,
)

from loadgen.swarm.engine import Engine, Flight

CANCEL_GRACE_S = 5.0
"""How long a cancelled user may take for its `finally` blocks before it is given up."""

ERROR_PAUSE_S = 0.01
"""A task that raises at once, without a wait time, must not flood Locust with tracebacks."""

logger = logging.getLogger(__name__)

events.quit.add_listener(lambda **_: Engine.close_process())

AsyncTask = Callable[[Any], Awaitable[object]]


class AsyncUser(User):
    """A user that lives as one coroutine on the process's engine.

    `@task` weights, `wait_time`, tags, `on_start` and `on_stop` (plain or `async def`), StopUser,
    RescheduleTask and StopTest mean what they mean in Locust. Plain hooks run on gevent's side,
    where blocking calls are cooperative; coroutines run on uvloop, where they are not.
    """

    abstract = True
    tasks: list[Any] = []  # noqa: RUF012  (Locust's metaclass fills it per class)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for task in cls.tasks:
            if not inspect.iscoroutinefunction(task):
                name = getattr(task, "__name__", repr(task))
                raise TypeError(f"{cls.__name__}.{name} must be `async def`: AsyncUser awaits it")

    def run(self) -> None:  # type: ignore[misc]  # final in Locust; this is its asyncio twin
        """Live until stopped; runs in the greenlet that Locust gave this user."""
        self._state = LOCUST_STATE_RUNNING
        try:
            self._run_plain(self.on_start)
            self._fly(self._live())
        except (GreenletExit, StopUser):
            pass
        except StopTest as stop:
            logger.error("%s", stop)
            self._stop_test()
        self._run_plain(self.on_stop)

    def _fly(self, coroutine: Any) -> None:
        flight: Flight[None] = Engine.of_process().start(coroutine)
        try:
            flight.result()
        except GreenletExit:
            flight.cancel()
            if not flight.join(CANCEL_GRACE_S):
                logger.warning("%s did not end within %g s", self, CANCEL_GRACE_S)
            raise

    def _run_plain(self, hook: Callable[[], object]) -> None:
        if inspect.iscoroutinefunction(hook):
            return
        try:
            hook()
        except (GreenletExit, StopUser, StopTest):
            raise
        except Exception as error:
            self._report(error)
            raise

    async def _live(self) -> None:
        try:
            if inspect.iscoroutinefunction(self.on_start):
                await self._guarded(self.on_start())
            while self._state != LOCUST_STATE_STOPPING:
                await self.one_task()
        except asyncio.CancelledError:
            pass  # killed by Locust: on_stop still runs
        finally:
            if inspect.iscoroutinefunction(self.on_stop):
                await self._guarded(self.on_stop())

    async def one_task(self) -> None:
        """Pick a task by weight, run it and wait as `wait_time` says."""
        try:
            await self._pick_task()(self)
        except (RescheduleTaskImmediately, InterruptTaskSet):
            await asyncio.sleep(0)
            return
        except RescheduleTask:
            pass
        except (StopUser, StopTest):
            raise
        except Exception as error:
            self._raised(error)
            await asyncio.sleep(ERROR_PAUSE_S)
        await self._wait()

    def _pick_task(self) -> AsyncTask:
        if not self.tasks:
            raise StopTest(f"{type(self).__name__} has no task: decorate an `async def` with @task")
        chosen: AsyncTask = random.choice(self.tasks)
        return chosen

    async def _wait(self) -> None:
        if self._state == LOCUST_STATE_STOPPING:
            return
        wait_s = self.wait_time()
        if not wait_s:
            await asyncio.sleep(0)
            return
        # In this state Locust kills the user instead of waiting for its task.
        self._state = LOCUST_STATE_WAITING
        await asyncio.sleep(wait_s)
        if self._state == LOCUST_STATE_WAITING:
            self._state = LOCUST_STATE_RUNNING

    async def _guarded(self, hook: Any) -> None:
        try:
            await hook
        except (StopUser, StopTest):
            raise
        except Exception as error:
            Engine.of_process().post(partial(self._report, error))
            raise StopUser from error

    def _raised(self, error: Exception) -> None:
        Engine.of_process().post(partial(self._report, error))
        if not self.environment.catch_exceptions:
            raise error

    def _report(self, error: Exception) -> None:
        """Put an exception where Locust shows it; on the hub."""
        self.environment.events.user_error.fire(
            user_instance=self, exception=error, tb=error.__traceback__
        )
        logger.error("%s\n%s", error, "".join(traceback.format_exception(error)))

    def _stop_test(self) -> None:
        runner = self.environment.runner
        options = self.environment.parsed_options
        headless = options is not None and options.headless
        gevent.spawn(runner.quit if headless else runner.stop)
