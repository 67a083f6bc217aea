"""What the terminal says of the warm-up of a run, and of whether it settled."""

from collections.abc import Mapping
from typing import Any

from loadgen.stats.steady_state import enough_s, is_notable

UNSETTLED = (
    "NOT SETTLED: time to first token kept drifting, so these figures are of no steady state:"
    " let it run longer, or with less load"
)


def steady_lines(summary: Mapping[str, Any]) -> list[str]:
    """Of a summary; none where nothing was left out and the run was steady from the start."""
    warmup, steady = summary.get("warmup"), summary.get("steady_state")
    lines = [] if warmup is None else [left_out(warmup)]
    if steady is not None and steady["settled"] is False:
        lines.append(UNSETTLED)
    elif steady is not None and is_notable(steady):
        lines += _found(steady)
    return lines


def left_out(warmup: Mapping[str, Any]) -> str:
    """In words, from the `warmup` of a summary."""
    if not warmup["seconds"]:
        return "warm-up: none was found, so nothing is left out"
    failed = f", {warmup['failed']} of them failed" if warmup["failed"] else ""
    # The engine's counters were read each second, before it was known from where to count.
    whole = "" if warmup["given"] else "; what the server counted is of the whole run"
    how = "" if warmup["given"] else " as they were found to be one"
    return (
        f"warm-up: the first {warmup['seconds']:.4g} s are left out{how},"
        f" {warmup['requests']} requests{failed}{whole}"
    )


def _found(steady: Mapping[str, Any]) -> list[str]:
    ttft_ms, e2e_ms = (
        " / ".join(_ms(steady["metrics"][name][each]) for each in ("p50", "p95"))
        for name in ("ttft_ms", "e2e_ms")
    )
    rate = steady["requests_per_s"]
    return [
        f"warm-up: {steady['early']} requests of the first {steady['from_s']:.1f} s move the mean"
        f" TTFT by {steady['shift']:+.0%} and are counted above"
        f" (--warmup {enough_s(steady['from_s'])} leaves them out)",
        f"without them: TTFT p50/p95 {ttft_ms} ms, E2E p50/p95 {e2e_ms} ms"
        + ("" if rate is None else f", {rate:.1f} requests/s"),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
