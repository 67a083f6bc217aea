"""What `kvswarm ask` prints of what a service says."""

import pytest

from loadgen.client.retrieval import Retrieval
from loadgen.launch.pipeline import AskPrinter


def test_the_name_of_a_document_cannot_command_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    AskPrinter(as_json=False, several=False).found(Retrieval("a\x1b[2Jb", "text", 0.5, {}, 1.0))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "score 0.500" in printed
