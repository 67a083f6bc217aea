"""A RemoteTier for callers that have no event loop and must not wait: engines and cache servers."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from kv_tiers.store.tier import RemoteTier

CLOSE_TIMEOUT_S = 10.0


class LoopThread:
    """An event loop in a daemon thread, with a RemoteTier that lives as long."""

    def __init__(self, tier: Callable[[], RemoteTier]) -> None:
        """`tier` is called on the loop; what it raises is raised here."""
        self.loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._started = threading.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self.tier: RemoteTier
        self._thread = threading.Thread(
            target=self._run, args=(tier,), name="kv-store", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def start(self, work: Coroutine[Any, Any, None]) -> bool:
        """Have it done; False, and nothing is, once the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(self._begin, work)
        except RuntimeError:
            work.close()
            return False
        return True

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _run(self, tier: Callable[[], RemoteTier]) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve(tier))

    async def _serve(self, tier: Callable[[], RemoteTier]) -> None:
        try:
            self.tier = tier()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._started.set()
        async with self.tier:
            await self._end.wait()
            for task in self._calls:  # and not what the tier itself has begun, which it ends
                task.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
