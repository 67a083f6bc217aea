"""The services of one target: started in order, watched, stopped in reverse.

Of several engines one that is up may die: the others go on.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Self, TypeVar

from loadgen.client.deadlines import time_limit
from loadgen.errors import TargetError
from loadgen.targets import engine_api
from loadgen.targets.catalog import Role
from loadgen.targets.fleet import EngineDeath
from loadgen.targets.plan import ServicePlan
from loadgen.targets.process import ServiceProcess

T = TypeVar("T")

READY_POLL_S = 0.05, 0.5  # at first, and at most


class ServiceGroup:
    """What runs for a target between `start` and `stop`; both may be called again.

    `async with` stops it at the end.
    """

    def __init__(
        self,
        plans: Sequence[ServicePlan],
        log_dir: Path,
        start_timeout_s: float,
        stop_grace_s: float,
        on_death: Callable[[TargetError], None] = lambda error: None,
    ) -> None:
        """Each service may take so long to be ready, and from SIGTERM until it is killed.
        `on_death` hears of an engine without which the others go on."""
        self.plans = plans
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._on_death = on_death
        self._log_dir = log_dir
        self._processes: list[ServiceProcess] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._is_up = False
        self._died: asyncio.Future[TargetError] = asyncio.get_running_loop().create_future()

    @property
    def url(self) -> str:
        """Of the router, else the engine; without either, of the last service."""
        return _front(self.plans, [plan.role for plan in self.plans]).url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        stopping = asyncio.create_task(self.stop())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:  # heard of once nothing runs any more
            await asyncio.wait([stopping])
            raise

    async def start(self) -> None:
        """Start each service once the one before it is ready, several engines at once.

        Raises TargetError.
        """
        for _, plans in groupby(self.plans, lambda plan: plan.role == "engine" or plan.name):
            for process in [await self._start(plan) for plan in plans]:
                await self._until_ready(process)
        self._is_up = True

    async def _start(self, plan: ServicePlan) -> ServiceProcess:
        process = await ServiceProcess.start(plan, self._log_dir, self._stop_grace_s)
        self._processes.append(process)
        self._watchers.append(asyncio.create_task(self._watch(process)))
        return process

    async def stop(self) -> None:
        """Stop the last first: an engine would wait for a cache server that is gone."""
        self._is_up = False
        while self._processes:
            last = self._processes[-1]
            await last.stop()
            self._processes = [each for each in self._processes if each is not last]
        await asyncio.shield(asyncio.gather(*self._watchers))
        self._watchers.clear()

    def check(self) -> None:
        """Raise TargetError when a service that the others need has exited unasked."""
        if self._died.done():
            raise self._died.result()

    def check_whole(self) -> None:
        """Raise TargetError when any service has."""
        self.check()
        for process in self._processes:
            if process.ended_perf_s is not None:
                raise process.exit_error()

    @property
    def deaths(self) -> list[EngineDeath]:
        """The engines that have exited unasked since the start, the first first."""
        found = [
            EngineDeath(process.plan.name, process.ended_perf_s, process.exit_words)
            for process in self._engines
            if process.ended_perf_s is not None and not process.stopping
        ]
        return sorted(found, key=lambda death: death.at_perf_s)

    @property
    def _engines(self) -> list[ServiceProcess]:
        return [process for process in self._processes if process.plan.role == "engine"]

    async def wait_died(self) -> TargetError:
        """Return the error once a service that the others need has exited unasked."""
        return await asyncio.shield(self._died)

    def pids(self) -> dict[str, list[int]]:
        """The living processes of each service."""
        return {process.plan.name: process.pids for process in self._processes}

    def error(self, happening: str) -> TargetError:
        """The error to raise about what requests go to, with what its log tells."""
        roles = [each.plan.role for each in self._processes]
        return _front(self._processes, roles).error(happening)

    async def _watch(self, process: ServiceProcess) -> None:
        await process.wait()
        if process.stopping or self._died.done():
            return
        if self._goes_on_without(process):
            self._on_death(process.exit_error())
        else:
            self._died.set_result(process.exit_error())

    def _goes_on_without(self, process: ServiceProcess) -> bool:
        """Whether it is one of several engines, and another lives."""
        lives = any(each.ended_perf_s is None for each in self._engines)
        return self._is_up and process in self._engines and lives

    async def _until_ready(self, process: ServiceProcess) -> None:
        timeout_s = self._start_timeout_s
        pause_s, longest_s = READY_POLL_S
        try:
            async with time_limit(timeout_s):
                while not await engine_api.is_ready(process.plan.ready_url):
                    await asyncio.wait([self._died], timeout=pause_s)
                    self.check()
                    pause_s = min(pause_s * 1.5, longest_s)
        except TimeoutError:
            raise process.error(f"was not ready within {timeout_s:g} s") from None


def _front(those: Sequence[T], roles: Sequence[Role]) -> T:
    """What requests are sent to."""
    wanted: tuple[Role, ...] = ("router", "engine")
    return those[next((roles.index(role) for role in wanted if role in roles), -1)]
