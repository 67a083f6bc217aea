"""Lines for whoever waits at a terminal, who may have left."""

import io
from collections.abc import Callable

import pytest

from loadgen.launch.terminal import say
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
