"""What is refused before a host is asked, in a process of its own: Locust patches it."""

import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import sys
from loadgen.errors import UsageError
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.swarm.leading.preparation import check_batches, check_shares

values, users, workers = map(eval, sys.argv[1:])
options = SwarmOptions.read(values)
batched = bool({"batches", "batch_as"} & values.keys())
try:
    check_shares(users, workers, options, batched)
    if batched:
        check_batches(options)
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
]


@pytest.mark.parametrize(("values", "users", "workers", "said"), CASES)
def test_loads_that_cannot_be_sent_as_asked(
    values: dict[str, Any], users: int, workers: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repr(values), str(users), str(workers)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said in done.stdout
    assert bool(said) == bool(done.stdout.strip())
