"""The contexts a run really emitted, read back from its `requests.csv`."""

import csv
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.workload.diversity import measure_diversity


def emitted_diversity(requests_csv: Path, since_s: float | None = None) -> dict[str, Any]:
    """Diversity of the requests that were sent (from `since_s` on), in the order of sending."""
    least_s = -math.inf if since_s is None else since_s
    sent: list[tuple[float, str]] = []
    with requests_csv.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["sent_s"] and float(row["sent_s"]) >= least_s:
                sent.append((float(row["sent_s"]), row["context_id"]))
    sent.sort()
    return asdict(measure_diversity(context_id for _, context_id in sent))
