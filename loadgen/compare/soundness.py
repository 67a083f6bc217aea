"""Why a run cannot decide anything, by what it says of itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED


@dataclass(frozen=True, slots=True)
class Fault:
    """`text` is ours, `detail` comes from the run's files."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


def faults_of(description: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Fault]:
    """What `run.json` and `summary.json` tell. Failed requests are none, they are measured."""
    code = description.get("exit_code", DONE)
    if summary.get("client_saturated") or code == SATURATED:
        detail = str(summary.get("client_saturated_reason") or "see its client_metrics.csv")
        yield Fault("the client was saturated, so its times are not the server's", detail)
    if summary.get("lost_workers"):
        yield Fault("workers were lost", str(summary["lost_workers"]))
    if user_errors := description.get("user_errors"):
        yield Fault("a user class raised exceptions", str(user_errors))
    if description.get("host_died") or code == TARGET_DIED:
        yield Fault("the host died")
    elif description and "exit_code" not in description:
        yield Fault("it did not come to its end")
    elif code not in (DONE, FAILED, SATURATED):
        yield Fault("it failed", f"exit code {code}")
    if description.get("interrupted") and (planned := _planned_end(description)):
        yield Fault("it was interrupted before its end", planned)


def _planned_end(description: Mapping[str, Any]) -> str:
    """The end that a run was given; without one, Ctrl-C is how it ends."""
    options = description.get("options") or {}
    if run_time_s := options.get("run_time"):
        return f"it was to take {run_time_s} s"
    batches = options.get("batches")
    return f"it was to send {batches} batches" if batches else ""
