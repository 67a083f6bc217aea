"""A uvloop loop for a thread beside gevent's hub."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import uvloop
from gevent._hub_local import get_hub_if_exists
from gevent.monkey import get_original

_start_native_thread = get_original("_thread", "start_new_thread")

T = TypeVar("T")


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
