"""Whoever waits at a terminal: lines for them on stderr, as stdout is for results, and their Ctrl-C
as the end of a `with` block, so that what was started is stopped."""

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rag_store.cli.output import fitted, width_of

T = TypeVar("T")

TELL_EVERY_S = 10.0
"""How often a user who waits for an engine is told something."""


def say(text: str) -> None:
    """One line on stderr, at once; nothing ends for want of a reader."""
    with contextlib.suppress(OSError):
        print(fitted(f"kvswarm: {text}", sys.stderr), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """A result on stdout, at once."""
    print(fitted(text, sys.stdout), flush=True)


def command_line(words: Sequence[str]) -> str:
    """A command to copy from stdout; on a terminal it is broken as shells read it."""
    width, lines = width_of(sys.stdout), [" "]
    for word in map(shlex.quote, words):
        if width is not None and len(lines[-1]) + len(word) + 3 > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def printable(text: str) -> str:
    """Text of others, without what a terminal obeys; line ends stay."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


@contextlib.asynccontextmanager
async def awaited(
    starting: AbstractAsyncContextManager[T], name: str, logs: Path
) -> AsyncIterator[T]:
    """What takes long to start, entered; meanwhile its user is told how long it has taken."""
    async with contextlib.AsyncExitStack() as stack:
        telling = asyncio.create_task(_tell_waiting(name, logs))
        try:
            started = await stack.enter_async_context(starting)
        finally:
            telling.cancel()
        yield started


async def _tell_waiting(name: str, logs: Path) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        say(f"{name} is starting for {time.monotonic() - began:.0f} s, log: {_newest_log(logs)}")


def _newest_log(logs: Path) -> Path:
    return max(logs.glob("*.log"), key=lambda log: log.stat().st_mtime, default=logs)


@dataclass(slots=True)
class Interruption:
    """Which signal came first; `handler` may take them instead of ending the block."""

    signal_number: int = 0
    handler: Callable[[int], None] | None = None

    @property
    def exit_code(self) -> int:
        """0 when interrupted by Ctrl-C or not at all, else what a shell reports."""
        return 128 + self.signal_number if self.signal_number not in (0, signal.SIGINT) else 0


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Cancel the current task's work inside the block at a signal, and swallow that cancelling."""
    interruption = Interruption()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        is_first = not interruption.signal_number
        interruption.signal_number = interruption.signal_number or number
        if interruption.handler is not None:
            interruption.handler(number)
        elif is_first:  # a second signal must not cut the stopping short
            task.cancel()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield interruption
    except asyncio.CancelledError:
        if not interruption.signal_number:
            raise
        task.uncancel()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
