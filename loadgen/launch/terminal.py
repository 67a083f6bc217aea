"""Whoever waits at a terminal: lines for them on stderr, as stdout is for results, and their Ctrl-C
as the end of a `with` block, so that what was started is stopped."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    """One line on stderr, at once."""
    print(f"kvswarm: {text}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text of others, without what a terminal obeys; line ends stay."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


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

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield interruption
    except asyncio.CancelledError:
        if not interruption.signal_number:
            raise
        task.uncancel()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
