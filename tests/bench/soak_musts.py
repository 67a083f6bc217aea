"""What a soak must reach, and its table."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FIGURES = {
    "requests": "requests",
    "requests_apart": "requests that the server received and the client did not send, or reverse",
    "replies_apart": "whole replies of the server and `ok` rows of the client, apart by",
    "tokens_apart": "tokens written by the server and read by the client, apart by",
    "not_ok": "requests that failed or were cut off",
    "statistics_apart": "rows, summary and Locust's statistics, apart by at most",
    "rss_first_mb": "resident memory at the beginning, MB",
    "rss_last_mb": "resident memory at the end, MB",
    "rss_mb_per_hour": "trend of memory, MB an hour",
    "peak_rss_mb": "resident memory, peak with the end of the run, MB",
    "loop_lag_p50_ms": "loop lag p50 of a second, ms",
    "loop_lag_p99_ms": "loop lag p99 of a second, ms",
    "loop_lag_drift": "trend of the lag p99 over the run, of its median",
    "cpu_share": "CPU, cores",
    "cpu_share_drift": "trend of CPU over the run, of its median",
    "saturated": "the client called itself saturated",
    "server_late": "tokens that the server wrote over 10 ms late",
}


@dataclass(frozen=True, slots=True)
class Must:
    """A figure that is at most `limit`."""

    figure: str
    limit: float

    def is_met(self, figures: Mapping[str, float]) -> bool:
        """Whether it was reached."""
        return figures[self.figure] <= self.limit


MUSTS = (
    Must("requests_apart", 0),
    Must("replies_apart", 0),
    Must("tokens_apart", 0),
    Must("not_ok", 0),
    Must("statistics_apart", 0),
    Must("rss_mb_per_hour", 10.0),
    Must("loop_lag_drift", 0.25),
    Must("saturated", 0),
)


def all_met(figures: Mapping[str, float]) -> bool:
    """Whether every must was."""
    return all(must.is_met(figures) for must in MUSTS)


def report(figures: Mapping[str, float]) -> str:
    """The table of all figures, and the line that counts the musts."""
    musts = {must.figure: must for must in MUSTS}
    lines = ["| | | must | |", "|---|---:|---|---|"]
    for name, what in FIGURES.items():
        asked = verdict = ""
        if (must := musts.get(name)) is not None:
            asked = f"at most {must.limit:g}"
            verdict = "met" if must.is_met(figures) else "MISSED"
        lines.append(f"| {what} | {_short(figures[name])} | {asked} | {verdict} |")
    met = sum(must.is_met(figures) for must in MUSTS)
    return "\n".join([*lines, "", f"musts met: {met} of {len(MUSTS)}", ""])


def write_figures(figures: Mapping[str, float], path: Path) -> None:
    """A row for each figure."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("figure", "value"))
        writer.writerows((name, figures[name]) for name in FIGURES)


def _short(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
