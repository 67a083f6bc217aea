"""Exit codes that a CI understands."""

from typing import Any

DONE = 0
"""Done."""
FAILED = 1
"""More than `--max-failures` percent of the finished requests failed, none was `ok`, a worker was
lost, a user class raised an exception, a limit of `--gate` was not met, a run with one was
interrupted before its end, or the report could not be written to stdout."""
WRONG_USE = 2
"""Wrong use: nothing was sent."""
TARGET_DIED = 3
"""An engine or a service that kvswarm starts did not start, or it, the host, or the service for
labels died during the run, or did not answer for `--max-silence`; of several engines behind a
router one is enough, and the run then goes on to its end."""
SATURATED = 5
"""The client was saturated."""
UNRECORDED = 6
"""The run directory could be written no more, as on a full disk, or was deleted: the load was
ended. The terminal has the figures of all requests, the directory what was written until then."""


def exit_code(
    summary: dict[str, Any],
    *,
    host_died: bool,
    max_failures_percent: float,
    lost_workers: int = 0,
    user_errors: int = 0,
    unrecorded: bool = False,
    gate_is_met: bool = True,
) -> int:
    """What a finished run means to a CI.

    A run that is not on record is none. A target that died, or of which an engine did, explains
    failures, and is not the system that was to be measured. Failures weigh more than a client that
    was too slow. A run in which no request succeeded, in which a worker was lost and with it a
    share of the load, in which a user class raised exceptions, or that does not meet its gate, has
    failed, whatever `max_failures_percent` allows.
    """
    if unrecorded:
        return UNRECORDED
    if host_died or summary.get("engine_deaths"):
        return TARGET_DIED
    outcomes = summary["outcomes"]
    finished = summary["requests"] - outcomes.get("cancelled", 0)
    failed_percent = 100.0 * summary["failed"] / finished if finished else 0.0
    has_failed = outcomes["ok"] == 0 or failed_percent > max_failures_percent
    if lost_workers or user_errors or has_failed or not gate_is_met:
        return FAILED
    return SATURATED if summary["client_saturated"] else DONE
