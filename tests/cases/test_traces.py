"""Traces that were replayed otherwise than they are, without a word."""

from pathlib import Path

import pytest

from loadgen.swarm.options.replay import Replay
from loadgen.workload.trace.selection import Selection, survey

TRACES = Path(__file__).with_name("traces")


@pytest.mark.parametrize(
    ("name", "entries", "said"),
    [
        (
            "out-of-order.jsonl",
            3,
            ["2 of 3 times in the trace run backwards, by up to 2 s: these requests are due with"],
        ),
        ("empty-rows.csv", 2, ["2 requests of the trace have no prompt or no reply: left out"]),
    ],
)
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_how_much_of_a_trace_was_changed_is_said(
    name: str, entries: int, said: list[str], speed: float
) -> None:
    selection = Selection(TRACES / name, speed=speed)
    found = survey(selection)
    assert found.entries == entries
    changes = list(Replay(selection, found).changes)
    assert len(changes) == len(said)
    assert all(line.startswith(start) for line, start in zip(changes, said, strict=True))


def test_a_trace_that_is_in_order_has_no_remark(tmp_path: Path) -> None:
    lines = sorted((TRACES / "out-of-order.jsonl").read_text().splitlines(), key=len)
    (tmp_path / "sorted.jsonl").write_text("\n".join([lines[0], *lines[:0:-1]]))
    selection = Selection(tmp_path / "sorted.jsonl")
    found = survey(selection)
    assert list(Replay(selection, found).changes) == []
    assert found.duration_s == 2.0
