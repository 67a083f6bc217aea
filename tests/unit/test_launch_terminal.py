"""Lines for whoever waits at a terminal, who may have left."""

import asyncio
import io
import os
import signal
from collections.abc import Callable

import pytest

from loadgen.launch.terminal import interruptible, say
from loadgen.swarm.showing.view import View


class ClosedTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("tell", [say, View().say])
def test_nothing_ends_for_want_of_a_reader(
    tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", ClosedTerminal())
    tell("the host is gone")


@pytest.mark.parametrize(("disposition", "ends"), [(signal.SIG_IGN, False), (signal.SIG_DFL, True)])
async def test_a_hangup_ends_only_who_does_not_ignore_it(
    disposition: signal.Handlers, ends: bool
) -> None:
    went_on, before = False, signal.signal(signal.SIGHUP, disposition)
    try:
        with interruptible() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
            went_on = True
        assert (went_on, bool(interruption.signal_number)) == (not ends, ends)
    finally:
        signal.signal(signal.SIGHUP, before)
