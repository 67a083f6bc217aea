"""What a run over several processes amounts to, from its directory and what the server noted."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from children import Metered
from client_replies import percentile
from figures import END_S, START_S, load_figures

METRICS = ("ttft_ms", "e2e_ms")
SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

Row = dict[str, str]


def workers_figures(
    metered: Metered, log: dict[str, Any], server_cpu_s: float, directory: Path, processes: int
) -> dict[str, float]:
    """Throughput, cost of swarm and server, and whether the parts add up to the whole."""
    with (directory / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    load = load_figures(metered, log)
    done = len(log["done_ns"])
    return {
        "requests_per_s": load["requests_per_s"],
        "cpu_s_per_1000": load["cpu_s_per_1000"],
        "first_cpu_s_per_1000": first_cpu_s_per_1000(metered, log),
        "server_cpu_s_per_1000": 1000 * server_cpu_s / done,
        "least_share": least_share(rows, processes),
        "percentile_error": percentile_error(rows, directory),
        "rows_apart": abs(done - sum(row["outcome"] == "ok" for row in rows)),
    }


def first_cpu_s_per_1000(metered: Metered, log: dict[str, Any]) -> float:
    """What the process that was started costs in the steady part: a master where there is one."""
    done = [ns / 1e9 for ns in log["done_ns"]]
    begin, end = log["first_post_ns"] / 1e9 + START_S, max(done) - END_S
    requests = sum(begin <= at < end for at in done)
    return (metered.cpu_at(end, own=True) - metered.cpu_at(begin, own=True)) * 1000 / requests


def least_share(rows: list[Row], processes: int) -> float:
    """The requests of the process that sent fewest, over a fair share; 0 where one sent none."""
    sent: dict[str, int] = defaultdict(int)
    for row in rows:
        sent[row["worker"]] += 1
    return min(sent.values()) * processes / len(rows) if len(sent) == processes else 0.0


def percentile_error(rows: list[Row], directory: Path) -> float:
    """The summary's percentiles against those of all rows together: the worst, relative."""
    metrics = json.loads((directory / "summary.json").read_text())["metrics"]
    errors = []
    for name in METRICS:
        values = sorted(float(row[name]) for row in rows if row["outcome"] == "ok")
        for quantile, share in SHARES.items():
            exact = percentile(values, share)
            errors.append(abs(metrics[name][quantile] - exact) / exact)
    return max(errors)
