"""The asyncio engine inside a Locust process: one uvloop event loop on one native OS thread.

Locust runs on gevent, whose monkey patching replaces threads, locks and selectors by cooperative
ones. The engine therefore starts its thread through the unpatched `_thread`, shares no lock with
gevent's hub, and hands work over by two lock-free queues: `call_soon_threadsafe` towards the
loop, a deque plus one async watcher towards the hub. What is logged off the hub goes there too.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import gevent
import uvloop
from gevent._hub_local import get_hub_if_exists
from gevent.event import Event
from gevent.monkey import get_original
from greenlet import getcurrent

from loadgen.errors import KvswarmError

_start_native_thread = get_original("_thread", "start_new_thread")
_native_thread_id = get_original("_thread", "get_ident")

HANDOVER_S = 0.05
"""How long results may wait in the loop's thread, so that the hub wakes for batches."""

SWITCH_S = 0.0005
"""How long the hub may run on while the loop, where arrivals are timed, waits for the interpreter.

Python's own 5 ms would be seen in each time that is taken meanwhile.
"""

HELD_S = 5.0
"""A loop that takes longer for a word is held by a task that blocks instead of awaiting."""
BLOCKS = "blocks the event loop, and with it all users of this process: await there"
STILL_HELD_S = 0.5
"""The same of a loop that was found so."""

NO_USERS_CODE = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))

T = TypeVar("T")
logger = logging.getLogger(__name__)


class LoopHeld(KvswarmError):
    """A task blocks the loop of its process: none of its users can send, read or end."""


class NativeLoop(uvloop.Loop):
    """A uvloop loop whose default executor is native threads.

    The standard default executor is built on `threading`, which gevent has patched: a job put
    there would wait for a hub that this thread does not have. Jobs must not share a
    `threading.Lock`: gevent's do not wake other native threads reliably.
    """

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        if executor is not None:
            return super().run_in_executor(executor, func, *args)  # type: ignore[return-value]
        future: asyncio.Future[T] = self.create_future()
        _start_native_thread(self._work, (future, func, args))
        return future

    def _work(
        self, future: "asyncio.Future[T]", func: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        try:
            settle, outcome = future.set_result, func(*args)
        except BaseException as error:
            settle, outcome = future.set_exception, error  # type: ignore[assignment]
        finally:
            if (hub := get_hub_if_exists()) is not None:
                hub.destroy(destroy_loop=True)  # a patched call made one: two descriptors
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self.call_soon_threadsafe(lambda: None if future.done() else settle(outcome))


@contextlib.contextmanager
def brisk_switching() -> Iterator[None]:
    """Inside the block threads take turns every `SWITCH_S`."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Flight(Generic[T]):
    """A coroutine under way on the loop, as seen from the hub: join it, cancel it."""

    __slots__ = ("_coroutine", "_engine", "_error", "_landed", "_result", "_task")

    def __init__(self, engine: "Engine", coroutine: Coroutine[Any, Any, T]) -> None:
        self._engine = engine
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._landed = Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Ask the coroutine to end; it sees a CancelledError at its next await."""
        self._engine.call(self._cancel)

    def join(self, timeout_s: float | None = None) -> bool:
        """Block this greenlet until the coroutine has ended; False when the time ran out."""
        return bool(self._landed.wait(timeout_s))

    def result(self) -> T:
        """Block until it has ended; its value, or its exception with the true traceback."""
        self._landed.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def launch(self) -> None:
        """Start the coroutine; runs in the loop's thread."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._land(None, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._land(None, error)
        else:
            self._land(task.result(), None)

    def _land(self, result: T | None, error: BaseException | None) -> None:
        self._result, self._error = result, error
        self._engine.post(self._landed.set, urgent=True)


class Engine:
    """The loop, its thread, and the two queues between it and gevent's hub."""

    _by_pid: ClassVar[dict[int, "Engine"]] = {}

    @classmethod
    def of_process(cls) -> "Engine":
        """The engine of this process, made at first use: `--processes` forks after the import."""
        pid = os.getpid()
        engine = cls._by_pid.get(pid)
        if engine is None:
            # No greenlet switch between the look-up and this line: 20 users may start at once.
            engine = cls._by_pid[pid] = cls()
        return engine

    @classmethod
    def close_process(cls) -> None:
        """Close the engine of this process if there is one; may be called again."""
        engine = cls._by_pid.get(os.getpid())
        if engine is not None:
            engine.close()
            cls._by_pid.pop(os.getpid(), None)

    def __init__(self) -> None:
        self.loop = NativeLoop()
        self._inbox: deque[Callable[[], object]] = deque()
        self._handover_due = False
        self.hub_thread = _native_thread_id()
        self._patience_s = HELD_S
        self._loop_thread: tuple[int, Any] = (0, None)
        self._ready = Event()
        self._closing = False
        self._stopped = False
        self._closed = Event()
        self._watcher = gevent.get_hub().loop.async_()
        self._watcher.start(self._ready.set)
        self._drainer = gevent.Greenlet(self._drain_for_ever)
        self._drainer.start()
        _log_on_hub()
        _start_native_thread(self._run_loop, ())

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Flight[T]:
        """Start a coroutine on the loop from the hub."""
        flight = Flight(self, coroutine)
        self.call(flight.launch)
        return flight

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and block this greenlet (not the hub) until it ended.

        Raises LoopHeld where the loop does not come to it.
        """
        flight = self.start(coroutine)
        try:
            while not flight.join(self._patience_s):
                if (place := self.held_at()) is not None:
                    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                        coroutine.close()  # it was never begun
                    raise LoopHeld(f"{place} {BLOCKS}")
            return flight.result()
        except gevent.GreenletExit:
            flight.cancel()
            raise

    def end(self, coroutine: Coroutine[Any, Any, object]) -> LoopHeld | None:
        """As `run`, at an end that has to come: a loop that is held is returned, not raised."""
        try:
            self.run(coroutine)
        except LoopHeld as held:
            return held
        return None

    def held_at(self) -> str | None:
        """Where a task blocks the loop, None where the loop still answers; blocks till it does."""
        answered = Event()
        self.call(partial(self.post, answered.set, urgent=True))
        is_held = not answered.wait(self._patience_s)
        self._patience_s = STILL_HELD_S if is_held else HELD_S
        return self._place() if is_held else None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop's thread, soon."""
        self.loop.call_soon_threadsafe(function)

    def post(self, function: Callable[[], object], urgent: bool = False) -> None:
        """Call a function on the hub, within `HANDOVER_S` (from the loop's thread) or at once."""
        self._inbox.append(function)
        if urgent:
            self._watcher.send()
        elif not self._handover_due:
            self._handover_due = True
            self.loop.call_later(HANDOVER_S, self._hand_over)

    def drain(self) -> None:
        """Run on the hub what the loop has posted so far."""
        while self._inbox:
            function = self._inbox.popleft()
            try:
                function()
            except Exception:
                logger.exception("a result could not be handed to Locust")

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what still runs on the loop, let it finish, stop the thread; may be repeated."""
        if not self._closing:
            self._closing = True
            self.call(lambda: self.loop.create_task(self._close_loop()))
        self._closed.wait(timeout_s)
        self._drainer.kill(block=False)
        self._watcher.close()

    def _hand_over(self) -> None:
        self._handover_due = False
        self._watcher.send()

    def _drain_for_ever(self) -> None:
        while True:
            try:
                self._ready.wait()
                self._ready.clear()
                self.drain()
            except KeyboardInterrupt as interrupt:
                # Ctrl-C meets whatever runs on the hub. It is the main greenlet's to handle, and
                # this one must live on: users wait for it until they have stopped.
                self._ready.set()
                gevent.get_hub().handle_system_error(KeyboardInterrupt, interrupt)

    def _place(self) -> str:
        """The line of a user's own file that the loop's thread is at."""
        thread, greenlet = self._loop_thread
        # A call that gevent has patched waits in a hub of this thread's own, beside that line.
        frame = greenlet.gr_frame or sys._current_frames().get(thread)
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(NO_USERS_CODE):
                return f"{frame.f_code.co_name} ({name}:{frame.f_lineno})"
            frame = frame.f_back
        return "a task"

    def _run_loop(self) -> None:
        self._loop_thread = _native_thread_id(), getcurrent()
        while not self._stopped:
            # sys.exit() in a task breaks out of the loop; it is for that task's flight to report.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
        self.loop.close()
        self.post(self._closed.set, urgent=True)

    async def _close_loop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        self._stopped = True
        self.loop.stop()


@cache
def _log_on_hub() -> None:
    """Have what other threads log handled on the hub, once per process.

    gevent made logging's locks cooperative, and a greenlet that waits for one held by another
    native thread may never be woken (gevent issue 2013).
    """
    call_handlers = logging.Logger.callHandlers

    def post_handlers(log: logging.Logger, record: logging.LogRecord) -> None:
        engine = Engine._by_pid.get(os.getpid())
        if engine is None or engine.hub_thread == _native_thread_id():
            call_handlers(log, record)
        else:
            engine.post(partial(call_handlers, log, record), urgent=True)

    logging.Logger.callHandlers = post_handlers  # type: ignore[assignment]
    logging._lock = get_original("threading", "RLock")()  # type: ignore[attr-defined]
