"""The contexts a run really emitted, read back from its `requests.csv`."""

import csv
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.workload.diversity import measure_diversity


def emitted_diversity(requests_csv: Path, since_s: float | None = None) -> dict[str, Any]:
    """Diversity of the contexts that were sent (from `since_s` on), in the order of sending.

    Of a retrieved context that is the one that was found; a question without any is left out.
    """
    least_s = -math.inf if since_s is None else since_s
    sent: list[tuple[float, str]] = []
    with requests_csv.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["sent_s"] and float(row["sent_s"]) >= least_s:
                sent.append((float(row["sent_s"]), _sent_context(row)))
    sent.sort()
    return asdict(measure_diversity(context_id for _, context_id in sent if context_id))


def _sent_context(row: dict[str, str]) -> str:
    return row["rag_context_id"] if row.get("retrieval_ms") else row["context_id"]
