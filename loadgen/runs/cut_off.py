"""The requests that a run cut off, read back from its `requests.csv`."""

import csv
from pathlib import Path


def count_cut_off(requests_csv: Path, error: str) -> int:
    """How many were cancelled with this `error`."""
    with requests_csv.open(encoding="utf-8", newline="") as file:
        return sum(
            row["outcome"] == "cancelled" and row["error"] == error for row in csv.DictReader(file)
        )
