import logging

import pytest

LOGGER = "vllm.context_scheduler"


class PluginLog:
    """What the plugin said, but for the warning about metrics that nobody will see."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def records(self, level: int) -> list[logging.LogRecord]:
        ours = (r for r in self._caplog.records if r.name == LOGGER and r.levelno == level)
        return [record for record in ours if "metrics are not on" not in record.getMessage()]

    def said(self, level: int) -> list[str]:
        return [record.getMessage() for record in self.records(level)]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> PluginLog:
    """vLLM's logger hands nothing on to pytest's by itself."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, LOGGER)
    return PluginLog(caplog)
