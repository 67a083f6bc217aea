"""Recorded runs as a twin takes them: their labels, engines, and the requests that count."""

import csv
from pathlib import Path

import pytest
from test_twin import BLOCK, write_run

from loadgen.twin.load import recorded_load


def rewritten(run: Path, **cells: str) -> Path:
    """With other cells in all rows."""
    with (run / "requests.csv").open(newline="") as file:
        rows = [{**row, **cells} for row in csv.DictReader(file)]
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return run


@pytest.mark.parametrize("label", ["c9", ""])
def test_the_engine_is_told_the_label_that_was_sent(tmp_path: Path, label: str) -> None:
    run = rewritten(write_run(tmp_path / "run"), label=label)
    first, second, *_ = recorded_load(run, BLOCK).requests
    assert (first.context, second.context) == ("c0", "c2")
    assert (first.sent_label, second.sent_label) == (label, label)


def test_a_file_without_labels_has_those_of_its_contexts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rows = (run / "requests.csv").read_text()
    (run / "requests.csv").write_text(rows.replace(",label,", ",formerly,", 1))
    assert all(each.sent_label == each.context for each in recorded_load(run, BLOCK).requests)
