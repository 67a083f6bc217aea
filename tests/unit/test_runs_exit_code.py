"""Exit codes: what a CI is told about a finished run."""

from typing import Any

import pytest

from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED, exit_code


def summary(
    ok: int, failed: int = 0, cancelled: int = 0, saturated: bool = False
) -> dict[str, Any]:
    outcomes = {"ok": ok, "http_error": failed, "cancelled": cancelled}
    return {
        "requests": ok + failed + cancelled,
        "failed": failed,
        "outcomes": outcomes,
        "client_saturated": saturated,
    }


@pytest.mark.parametrize(
    ("made", "more", "code"),
    [
        (summary(10), {}, DONE),
        (summary(10, cancelled=5), {}, DONE),
        (summary(0), {}, FAILED),
        (summary(0, cancelled=3), {}, FAILED),
        (summary(99, failed=1), {}, FAILED),
        (summary(99, failed=1), {"max_failures_percent": 1.0}, DONE),
        (summary(98, failed=2), {"max_failures_percent": 1.0}, FAILED),
        (summary(10, saturated=True), {}, SATURATED),
        (summary(9, failed=1, saturated=True), {}, FAILED),
        (summary(9, failed=1), {"host_died": True}, TARGET_DIED),
        (summary(9, failed=1) | {"engine_deaths": [{}]}, {}, TARGET_DIED),
        (summary(9, failed=1) | {"engine_deaths": []}, {}, FAILED),
        (summary(10), {"lost_workers": 1}, FAILED),
        (summary(10, saturated=True), {"user_errors": 1}, FAILED),
    ],
)
def test_exit_code(made: dict[str, Any], more: dict[str, Any], code: int) -> None:
    settings = {"host_died": False, "max_failures_percent": 0.0, **more}
    assert exit_code(made, **settings) == code


def test_cancelled_requests_do_not_dilute_failures() -> None:
    made = summary(ok=98, failed=2, cancelled=900)
    assert exit_code(made, host_died=False, max_failures_percent=1.0) == FAILED
