"""Rows in Locust's statistics, in a process of their own: importing Locust patches all of it."""

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys
from dataclasses import fields
from locust.stats import RequestStats
from loadgen.record import BatchRecord, RequestRecord
from loadgen.swarm.showing.stats_rows import log_batches, log_records

batches = json.load(sys.stdin)
stats = RequestStats()
for batch in batches:
    blank = {field.name: None for field in fields(RequestRecord)}
    log_records(stats, [(RequestRecord(**(blank | record)), gaps_ms) for record, gaps_ms in batch])
blank = {field.name: None for field in fields(BatchRecord)}
makespans_s = json.loads(sys.argv[1])
log_batches(stats, [BatchRecord(**(blank | {"makespan_s": each})) for each in makespans_s])
print(json.dumps({
    name: {
        "count": entry.num_requests,
        "total": entry.total_response_time,
        "least": entry.min_response_time,
        "most": entry.max_response_time,
        "times": [[key, entry.response_times[key]] for key in sorted(entry.response_times)],
        "per_s": sum(entry.num_reqs_per_sec.values()),
    }
    for (name, kind), entry in stats.entries.items()
}))
"""

OK = {"outcome": "ok", "ttft_ms": 12.3456, "tpot_ms": 2.0, "e2e_ms": 500.0, "output_tokens": 4}
ROWS = [
    (OK, [1.2345, 0.0, 98.76]),
    ({**OK, "ttft_ms": 0.5, "prompt_tokens": 200, "cached_tokens": 50}, [1.2312, 1.2312]),
    ({**OK, "outcome": "timeout"}, [7.0]),
    ({"outcome": "ok"}, []),
]


def logged(*batches: list[Any], makespans_s: tuple[float | None, ...] = ()) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(makespans_s)],
        input=json.dumps(batches),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    return logged(ROWS)


def test_every_gap_counts_once_with_three_digits_kept(entries: dict[str, Any]) -> None:
    itl = entries["ITL (ms)"]
    assert itl["times"] == [[0.0, 1], [1.23, 3], [98.8, 1]]
    assert (itl["count"], itl["per_s"]) == (5, 5)


def test_very_many_gaps_are_all_counted_within_a_hundredth() -> None:
    gaps_ms = [0.0, 0.0, *(1.5 * 1.01**n for n in range(500))]
    itl = logged([(OK, gaps_ms)])["ITL (ms)"]
    counted = [value for value, count in itl["times"] for _ in range(count)]
    assert sorted(counted) == pytest.approx(sorted(gaps_ms), rel=0.006)
    assert itl["total"] == pytest.approx(sum(gaps_ms))
    assert (itl["count"], itl["per_s"]) == (502, 502)


def test_extremes_and_sums_are_not_rounded(entries: dict[str, Any]) -> None:
    ttft = entries["TTFT (ms)"]
    assert (ttft["least"], ttft["most"]) == (0.5, 12.3456)
    assert ttft["total"] == pytest.approx(12.8456)


def test_a_speed_counts_once_for_each_token(entries: dict[str, Any]) -> None:
    speed = entries["Output tokens/s"]
    assert (speed["count"], speed["times"]) == (8, [[8.0, 8]])
    assert speed["total"] == pytest.approx(64.0)


def test_only_what_is_known_of_ok_requests_is_there(entries: dict[str, Any]) -> None:
    assert entries["Cached-token share (%)"]["times"] == [[25.0, 1]]
    assert entries["TPOT (ms)"]["count"] == 2
    assert logged([ROWS[2], ROWS[3]]) == {}


def test_how_rows_are_batched_changes_nothing(entries: dict[str, Any]) -> None:
    assert logged(*([row] for row in ROWS)) == {
        name: {**entry, "total": pytest.approx(entry["total"])} for name, entry in entries.items()
    }


def test_retrieval_has_a_row_where_there_was_some() -> None:
    found = {**OK, "retrieval_ms": 2.3456}
    entries = logged([(found, []), ({**found, "outcome": "timeout"}, []), (OK, [])])
    assert entries["Retrieval (ms)"]["times"] == [[2.35, 1]]


def test_only_whole_batches_have_a_makespan() -> None:
    (entry,) = logged(makespans_s=(2.3456, None, 0.5)).items()
    assert entry[0] == "Batch makespan (s)"
    assert (entry[1]["count"], entry[1]["times"]) == (2, [[0.5, 1], [2.35, 1]])


FORGETFUL = """
import time
from locust.stats import RequestStats
from loadgen.swarm.showing.stats_rows import KEPT_S, forget_seconds

stats, now = RequestStats(), int(time.time())
stats.log_request("POST", "/v1/completions", 5, 0)
stats.total.start_time = now - 3600
for entry in (stats.total, *stats.entries.values()):
    for second in range(now - 3600, now):
        entry.num_reqs_per_sec[second] += 3
        entry.num_fail_per_sec[second] += 1
forget_seconds(stats)
for entry in (stats.total, *stats.entries.values()):
    assert KEPT_S <= len(entry.num_reqs_per_sec) <= KEPT_S + 2
    assert len(entry.num_fail_per_sec) <= KEPT_S + 2
assert stats.total.current_rps == 3
assert stats.total.num_requests == 1
"""


def test_seconds_long_past_are_forgotten_and_the_rate_of_now_is_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_replies_that_leave_a_zero_out_took_none_from_a_cache() -> None:
    untold = {**OK, "prompt_tokens": 100}
    told = {**untold, "cached_tokens": 90}
    assert "Cached-token share (%)" not in logged([[untold, []]], [[untold, []]])
    row = logged([[untold, []]], [[untold, []], [told, []]], [[untold, []]])
    assert (row["Cached-token share (%)"]["count"], row["Cached-token share (%)"]["total"]) == (
        4,
        90.0,
    )
