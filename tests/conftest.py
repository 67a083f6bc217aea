"""How the workers of pytest-xdist share the tests: by file, the slow ones first.

Those that start a vLLM are two shares of about the same time, so that there are engines of two
tests at a time.
"""

import signal

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ENGINE = ("tests/engine/", "tests/browser/test_browser_vllm.py")
ONE_HALF = tuple(
    f"tests/engine/test_{name}.py"
    for name in (
        *("fleet_vllm", "rag_reranker_vllm", "run_on_target"),
        *("targets_lmcache", "targets_transformers", "targets_vllm"),
    )
)
"""One share; the others of `ENGINE` are the other."""
SLOW = (*ENGINE, "tests/packaging/", "tests/runs/", "tests/browser/", "tests/rag/", "tests/locust/")


class EngineSharing(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ONE_HALF):
            return ONE_HALF[0]
        return ENGINE[0] if nodeid.startswith(ENGINE) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # absent with `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> EngineSharing:
    return EngineSharing(config, log)


settings.register_profile("any machine", deadline=None)  # no test depends on a machine's speed
settings.load_profile("any machine")


def pytest_configure() -> None:
    """A shell has what it runs in the background ignore SIGINT, and nohup SIGHUP, and so would all
    that tests start and interrupt."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid: str) -> int:
    return next((n for n, start in enumerate(SLOW) if nodeid.startswith(start)), len(SLOW))


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Name what failed at once, among the dots."""
    if not report.failed:
        return None
    kind = "failed" if report.when == "call" else "error"
    return kind, f"\n{kind.upper()} {report.nodeid}\n", kind.upper()
