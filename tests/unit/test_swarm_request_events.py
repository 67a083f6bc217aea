"""Locust's statistics are the same, whether somebody else listens or not."""

import json
import subprocess
import sys
from typing import Any

SCRIPT = """
import json, sys
from locust.env import Environment
from loadgen.record import RequestRecord
from loadgen.swarm.showing.request_events import RequestEvents

def record(number):
    known = dict.fromkeys(RequestRecord.__dataclass_fields__)
    outcome = {3: "http_error", 4: "cancelled"}.get(number % 10, "ok")
    changed = {"outcome": outcome, "e2e_ms": 1.7 * number, "error": "no", "context_id": "c"}
    return RequestRecord(**{**known, **changed})

def told(listened):
    environment, heard = Environment(), []
    environment.create_local_runner()
    if listened:
        environment.events.request.add_listener(lambda **request: heard.append(request))
    events = RequestEvents(environment, "/v1/completions")
    events.tell([record(number) for number in range(600)])
    events.tell([])
    entries = [environment.stats.total, *environment.stats.entries.values()]
    rows = [
        [e.name, e.method, e.num_requests, e.num_failures, e.min_response_time,
         e.max_response_time, round(e.total_response_time, 6), sorted(e.response_times.items()),
         sum(e.num_reqs_per_sec.values()), e.total_content_length]
        for e in entries
    ]
    return {"rows": rows, "errors": len(environment.stats.errors), "heard": len(heard)}

print(json.dumps([told(False), told(True)]))
"""


def test_a_listener_hears_of_every_request_and_changes_no_statistics() -> None:
    # Locust patches the process that imports it.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    together, one_by_one = json.loads(done.stdout.splitlines()[-1])
    assert (together.pop("heard"), one_by_one.pop("heard")) == (0, 540)
    assert together == one_by_one
    total: list[Any] = together["rows"][0]
    assert total[2:4] == [540, 60]


FAILURES = """
import json
from loadgen.record import RequestRecord
from loadgen.swarm.showing.request_events import MOST_TEXTS, FailedRequests

def told(error, outcome="http_error"):
    known = dict.fromkeys(RequestRecord.__dataclass_fields__)
    return str(failed.told_as(RequestRecord(**{**known, "outcome": outcome, "error": error})))

failed = FailedRequests()
many = [told(f"no room for {n} tokens") for n in range(5000)]
print(json.dumps([MOST_TEXTS, many, told("no room for 7 tokens"), told("gone", "timeout")]))
"""


def test_errors_with_a_number_in_each_are_not_kept_for_ever() -> None:
    command = [sys.executable, "-c", FAILURES]
    most, many, known, other = json.loads(subprocess.check_output(command, timeout=60))
    assert many[0] == "http_error: no room for 0 tokens"
    assert len(set(many)) == most + 1
    assert many[-1] == "http_error: another error, see requests.csv"
    assert known == many[7]
    assert other.startswith("timeout: another")
