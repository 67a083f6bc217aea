"""What each client says of its replies, in one form."""

import csv
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Reported(NamedTuple):
    """What a client says of one reply; `number` is the server's name for it.

    `itl_p99_ms` is None for a client that keeps no gap of its own.
    """

    number: int
    ttft_ms: float
    itl_p99_ms: float | None


def replies_of_kvswarm(directory: Path) -> list[Reported]:
    """The complete replies of a run directory."""
    with (directory / "requests.csv").open(newline="") as file:
        return [
            Reported(int(row["prompt_tokens"]), float(row["ttft_ms"]), float(row["itl_p99_ms"]))
            for row in csv.DictReader(file)
            if row["outcome"] == "ok"
        ]


def replies_of_times(path: Path) -> list[Reported]:
    """Of a list of (number, when it was sent, when each token came), in seconds."""
    return [
        Reported(number, (times[0] - sent_at) * 1000, p99_gap_ms(times))
        for number, sent_at, times in json.loads(path.read_bytes())
    ]


def replies_of_vllm(path: Path) -> list[Reported]:
    """Of the detailed result of `vllm bench serve`, whose texts begin with the number."""
    result = json.loads(path.read_bytes())
    rows = zip(result["generated_texts"], result["ttfts"], result["itls"], strict=True)
    return [
        Reported(number, ttft_s * 1000, p99_ms([gap_s * 1000 for gap_s in itls]))
        for text, ttft_s, itls in rows
        if (number := number_in(text))
    ]


def replies_of_aiperf(directory: Path) -> list[Reported]:
    """Of the records that `aiperf profile` exports, a line of JSON for each request."""
    with (directory / "profile_export.jsonl").open(encoding="utf-8") as file:
        records = [json.loads(line)["metrics"] for line in file]
    return [
        Reported(
            metrics["usage_prompt_tokens"]["value"],
            metrics["time_to_first_token"]["value"],
            p99_ms(metrics["inter_chunk_latency"]["value"]),
        )
        for metrics in records
        if "inter_chunk_latency" in metrics
    ]


def replies_of_guidellm(path: Path) -> list[Reported]:
    """Of the JSON report of `guidellm run`, which has the mean of a reply's gaps alone."""
    (benchmark,) = json.loads(path.read_bytes())["benchmarks"]
    return [
        Reported(request["prompt_tokens"], request["time_to_first_token_ms"], None)
        for request in benchmark["requests"]["successful"]
    ]


def number_in(text: str) -> int:
    """The number in a reply's text, 0 where it has none."""
    found = re.match(r"\s*#\s*(\d+)", text)
    return int(found[1]) if found else 0


def p99_gap_ms(times: Sequence[float]) -> float:
    """The 99th percentile of the gaps between neighbouring times in seconds."""
    return p99_ms([(b - a) * 1000 for a, b in itertools.pairwise(times)])


def p99_ms(gaps: list[float]) -> float:
    """The 99th percentile of values in any order."""
    return percentile(sorted(gaps), 0.99)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile of sorted values, linearly interpolated between neighbours."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
