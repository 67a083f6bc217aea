"""What a long run amounts to: whether all was counted, and whether memory and lag stay the same.

Memory and lag are of the client's own samples, one a second. The steady part is cut into equal
spans; a trend is the median of the slopes between the medians of any two spans (Theil 1950, Sen
1968), so that a single bad stretch of a shared machine does not make one.
"""

import csv
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

SPANS = 12
WARM_UP_S, WARM_UP_SHARE = 120.0, 0.5
"""Contexts, buckets and connections are made in the first minute: not part of any trend."""
HOUR_S = 3600.0
LEAST_LAG_MS = 1.0
"""Of a lag below it, a trend is of no account."""

Sample = Mapping[str, float]


def soak_figures(directory: Path, server: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a run directory beside the counts of the server that it loaded."""
    return {
        **count_figures(counts_of(directory), server),
        **trend_figures(samples_of(directory)),
    }


def samples_of(directory: Path) -> list[Sample]:
    """The client's samples in the order of time."""
    with (directory / "client_metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("at_s", "rss_mb", "loop_lag_p50_ms", "loop_lag_p99_ms", "cpu_share")
    samples = [{name: float(row[name]) for name in names} for row in rows]
    return sorted(samples, key=lambda sample: sample["at_s"])


def counts_of(directory: Path) -> dict[str, int]:
    """What the client says in each place where it says it."""
    outcomes, sent, tokens = Counter[str](), 0, 0
    with (directory / "requests.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            outcomes[row["outcome"]] += 1
            sent += bool(row["sent_s"])
            tokens += int(row["output_tokens"] or 0)
    summary = json.loads((directory / "summary.json").read_text())
    with (directory / "locust_stats.csv").open(newline="") as file:
        locust = {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
    return {
        "rows": outcomes.total(),
        "ok": outcomes["ok"],
        "sent": sent,
        "tokens": tokens,
        "summary_ok": summary["outcomes"]["ok"],
        "locust": locust["Aggregated"],
        "locust_gaps": locust["ITL (ms)"],
    }


def count_figures(client: Mapping[str, int], server: Mapping[str, Any]) -> dict[str, float]:
    """How far the counts of client and server are apart: all 0 where nothing is lost."""
    ok, tokens = client["ok"], client["tokens"]
    return {
        "requests": client["rows"],
        "requests_apart": abs(server["requests"] - client["sent"]),
        "replies_apart": abs(server["replies"] - ok),
        "tokens_apart": abs(server["events"] - tokens),
        "not_ok": client["rows"] - ok,
        "statistics_apart": max(
            abs(client["summary_ok"] - ok),
            abs(client["locust"] - ok),
            abs(client["locust_gaps"] - (tokens - ok)),
        ),
        "server_late": server["late"],
    }


def trend_figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Medians and trends of the steady part. Raises RuntimeError where that is too short."""
    warm_up_s = min(WARM_UP_S, WARM_UP_SHARE * samples[-1]["at_s"]) if samples else 0.0
    steady = [sample for sample in samples if sample["at_s"] > warm_up_s]
    if len(steady) < 2 * SPANS:
        raise RuntimeError(f"only {len(steady)} steady seconds to judge: give more --minutes")
    spans = [
        steady[n * len(steady) // SPANS : (n + 1) * len(steady) // SPANS] for n in range(SPANS)
    ]
    lasted_s = steady[-1]["at_s"] - steady[0]["at_s"]

    def median(name: str) -> float:
        return _median(steady, name)

    def drift(name: str, least: float) -> float:
        return trend_per_s(spans, name) * lasted_s / max(median(name), least)

    return {
        "rss_first_mb": _median(spans[0], "rss_mb"),
        "rss_last_mb": _median(spans[-1], "rss_mb"),
        "rss_mb_per_hour": trend_per_s(spans, "rss_mb") * HOUR_S,
        "loop_lag_p50_ms": median("loop_lag_p50_ms"),
        "loop_lag_p99_ms": median("loop_lag_p99_ms"),
        "loop_lag_drift": drift("loop_lag_p99_ms", LEAST_LAG_MS),
        "cpu_share": median("cpu_share"),
        "cpu_share_drift": drift("cpu_share", 0.01),
    }


def trend_per_s(spans: Sequence[Sequence[Sample]], name: str) -> float:
    """The median slope of a value between the spans, per second."""
    points = [(_median(span, "at_s"), _median(span, name)) for span in spans]
    return statistics.median(
        (after - before) / (later_s - earlier_s)
        for (earlier_s, before), (later_s, after) in combinations(points, 2)
    )


def _median(span: Sequence[Sample], name: str) -> float:
    return statistics.median(sample[name] for sample in span)
