"""What is refused before a host is asked, in a process of its own: Locust patches it."""

import subprocess
import sys
from typing import Any

SCRIPT = """
import sys
from loadgen.errors import UsageError
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.swarm.leading.preparation import check_batches, check_shares, gate_of

for values, users, workers in eval(sys.argv[1]):
    options = SwarmOptions.read(values)
    batched = bool({"batches", "batch_as"} & values.keys())
    try:
        check_shares(users, workers, options, batched)
        gate_of(options, batched)
        if batched:
            check_batches(options)
        print()
    except UsageError as error:
        print(error)
"""

OPEN = {"arrivals": "poisson", "rate": 4}
CASES: list[tuple[dict[str, Any], int, int, str]] = [
    ({"batches": 4}, 1, 2, "--batches is shared out over 2 workers"),
    ({"batches": 4}, 2, 2, ""),
    ({"batches": 4}, 0, 2, ""),
    ({"batches": 0}, 1, 2, ""),
    ({"trace": "trace.jsonl"}, 1, 2, "give -u 2 or more"),
    ({"trace": "trace.jsonl"}, 2, 2, ""),
    (OPEN, 3, 4, "give -u 4 or more, or -u 0 for no cap"),
    (OPEN, 0, 4, ""),
    (OPEN, 1, 1, ""),
    ({}, 1, 4, ""),
    ({"batch_as": "list", "endpoint": "chat"}, 1, 1, "--endpoint completions"),
    ({"batch_as": "list", "output_tokens": "4-8"}, 1, 1, "give one number"),
    ({"batch_as": "requests", "endpoint": "chat", "output_tokens": "4-8"}, 1, 1, ""),
    ({"require_proof": True}, 1, 1, "--require-proof is of limits: give them with --gate"),
    ({"require_proof": True, "gate": "errors<=1%"}, 1, 1, ""),
]


def test_loads_that_cannot_be_sent_as_asked() -> None:
    lines = said_of(SCRIPT, [case[:-1] for case in CASES])
    for (*given, said), line in zip(CASES, lines, strict=True):
        assert said in line, given
        assert bool(said) == bool(line), given


def said_of(script: str, cases: list[Any]) -> list[str]:
    """A line for each case: Locust takes a second to import."""
    words = [sys.executable, "-c", script, repr(cases)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


SIZES = """
import sys
from loadgen.errors import UsageError
from loadgen.swarm.leading.preparation import check_users, check_warmup
from loadgen.swarm.leading.web import form_values
from loadgen.swarm.options.swarm_options import SwarmOptions
from locust.argument_parser import get_parser
import loadgen.swarm.plugin

nan = float("nan")
parser = get_parser().args_included_in_web_ui
for given in eval(sys.argv[1]):
    try:
        form = {name: value for name, value in given.items() if isinstance(value, str)}
        values = given | form_values(form, parser)
        check_users(values)
        check_warmup(values, SwarmOptions.read({}))
        print()
    except UsageError as error:
        print(error)
"""
SIZES_SAID: list[tuple[dict[str, Any], str]] = [
    ({"user_count": "2", "spawn_rate": "1.5", "run_time": "20s"}, ""),
    ({"user_count": "", "spawn_rate": "", "run_time": ""}, ""),
    ({"spawn_rate": "0"}, "--spawn-rate: must be > 0"),
    ({"spawn_rate": "inf"}, "--spawn-rate: must be a finite number"),
    ({"spawn_rate": 0}, "--spawn-rate 0 is out of range"),
    ({"spawn_rate": float("nan")}, "--spawn-rate nan is out of range"),
    ({"user_count": "nan"}, "'nan' users: give a whole number"),
    ({"num_users": 1.5}, "1.5 users: give a whole number"),
    ({"user_count": "-2"}, "-2 users: give 1 or more"),
    ({"run_time": "0"}, "'0' is no run time"),
    ({"run_time": "99999999999999h"}, "'99999999999999h' is no run time"),
    ({"run_time": "9" * 400}, "is no run time"),
    ({"run_time": 0}, "--run-time 0 is out of range"),
    ({"run_time": -1.0}, "--run-time -1 is out of range"),
]


def test_sizes_of_a_swarm_that_cannot_be() -> None:
    """As a form, as text, or a locustfile's `set_defaults`, as numbers, gives them."""
    lines = said_of(SIZES, [values for values, _ in SIZES_SAID])
    for (values, said), line in zip(SIZES_SAID, lines, strict=True):
        assert said in line, values
        assert bool(said) == bool(line), values
