"""What one run amounts to, from the server's notes, the meter and what the client reported."""

import csv
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from children import Metered
from client_replies import Reported, p99_gap_ms, percentile

START_S, END_S = 1.0, 0.5
"""Left out of the steady part: users are still being started, and the first ones have ended."""
LEAST_ERRORS = 20
WINDOW_ARRIVALS, LEAST_WINDOWS = 20, 50


def load_figures(metered: Metered, log: dict[str, Any]) -> dict[str, float]:
    """Throughput and cost.

    Both are taken over the steady part, as the server saw it. `whole_cpu_s_per_1000` has all CPU
    after the first request in it, also what is spent at the end on summaries and reports.
    """
    first = log["first_post_ns"] / 1e9
    done = [ns / 1e9 for ns in log["done_ns"]]
    begin, end = first + START_S, max(done) - END_S
    requests = sum(begin <= at < end for at in done)
    if not requests:
        raise RuntimeError("no request in the steady part: give more --seconds")
    cpu_s = metered.cpu_at(end) - metered.cpu_at(begin)
    whole_cpu_s = metered.total_cpu_s - metered.cpu_at(first)
    return {
        "requests_per_s": requests / (end - begin),
        "cpu_s_per_1000": cpu_s * 1000 / requests,
        "whole_cpu_s_per_1000": whole_cpu_s * 1000 / len(done),
        "start_s": first - metered.started_at,
        "start_cpu_s": metered.cpu_at(first),
        "peak_rss_mb": metered.peak_rss_mb,
    }


def pace_figures(requests: Path, rate_per_s: float) -> dict[str, float]:
    """How an open loop's sends of a requests.csv are spread, and how late they were.

    `dispersion` is the variance over the mean of their number in windows in which `WINDOW_ARRIVALS`
    are due: 1 for Poisson arrivals, more where they go in bunches (Cox and Lewis, 1966).
    """
    with requests.open(newline="", encoding="utf-8") as file:
        sent = [row for row in csv.DictReader(file) if row["sent_s"]]
    rows = [(float(row["scheduled_s"]), float(row["sent_s"])) for row in sent]
    sent_s = [sent for _, sent in rows]
    late_ms = sorted(1000 * (sent - due) for due, sent in rows)
    begin_s, end_s = min(sent_s) + START_S, max(sent_s) - END_S
    windows = int((end_s - begin_s) * rate_per_s / WINDOW_ARRIVALS)
    if windows < LEAST_WINDOWS:
        raise RuntimeError("too few requests to tell their pace: give more --seconds")
    counts = Counter(int((at - begin_s) * rate_per_s / WINDOW_ARRIVALS) for at in sent_s)
    numbers = [counts[window] for window in range(windows)]
    return {
        "dispersion": statistics.variance(numbers) / statistics.fmean(numbers),
        "late_p99_ms": percentile(late_ms, 0.99),
        "requests_per_s": sum(numbers) * rate_per_s / (windows * WINDOW_ARRIVALS),
    }


def error_figures(
    metered: Metered, log: dict[str, Any], reported: Iterable[Reported]
) -> dict[str, float]:
    """Reported minus true, in ms, over the replies of a run but those of its first second and the
    first of each connection.

    True is what the server saw: a TTFT from the receipt of the request to the write of the first
    token, and the 99th percentile of the gaps between the writes of a reply. Absolute values are
    used for ITL, whose errors cancel otherwise; a client without gaps has none. The first replies
    are left out because they have the opening of their connections in them.
    """
    true = {int(number): times for number, times in log["replies"].items()}
    begin_ns, opening = log["first_post_ns"] + START_S * 1e9, set(log["opening"])
    ttft_errors, itl_errors = [], []
    for reply in reported:
        received_ns, *sent_ns = true[reply.number]
        if received_ns < begin_ns or reply.number in opening:
            continue
        ttft_errors.append(reply.ttft_ms - (sent_ns[0] - received_ns) / 1e6)
        if reply.itl_p99_ms is not None:
            itl_errors.append(abs(reply.itl_p99_ms - p99_gap_ms([ns / 1e9 for ns in sent_ns])))
    if len(ttft_errors) < LEAST_ERRORS:
        raise RuntimeError(f"only {len(ttft_errors)} replies to judge: give more --error-seconds")
    return {
        **_mean_and_p99("ttft_error", ttft_errors),
        **_mean_and_p99("itl_error", itl_errors),
        "cpu_s_per_1000": load_figures(metered, log)["cpu_s_per_1000"],
        "start_s": log["first_post_ns"] / 1e9 - metered.started_at,
        "peak_rss_mb": metered.peak_rss_mb,
        "server_late_p99_ms": percentile(sorted(log["late_ns"]), 0.99) / 1e6,
    }


def _mean_and_p99(name: str, errors: list[float]) -> dict[str, float]:
    if not errors:
        return {}
    p99_ms = percentile(sorted(errors), 0.99)
    return {f"{name}_mean_ms": statistics.fmean(errors), f"{name}_p99_ms": p99_ms}
