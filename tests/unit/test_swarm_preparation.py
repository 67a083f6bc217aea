"""What is refused of batches before a host is asked, in a process of its own: Locust patches it."""

import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import sys
from loadgen.errors import UsageError
from loadgen.swarm.options import SwarmOptions
from loadgen.swarm.preparation import check_batches

values = eval(sys.argv[1])
try:
    check_batches(values, SwarmOptions.read(values))
except UsageError as error:
    print(error)
"""

CASES: list[tuple[dict[str, Any], str]] = [
    ({"batches": 4, "num_users": 1, "expect_workers": 2}, "give -u 2"),
    ({"batches": 4, "num_users": 2, "expect_workers": 2}, ""),
    ({"batches": 4, "num_users": 0, "expect_workers": 2}, ""),
    ({"batches": 0, "num_users": 1, "expect_workers": 2}, ""),
    ({"batch_as": "list", "endpoint": "chat"}, "--endpoint completions"),
    ({"batch_as": "list", "output_tokens": "4-8"}, "give one number"),
    ({"batch_as": "requests", "endpoint": "chat", "output_tokens": "4-8"}, ""),
]


@pytest.mark.parametrize(("values", "said"), CASES)
def test_batches_that_cannot_be_sent_as_asked(values: dict[str, Any], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repr(values)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said in done.stdout
    assert bool(said) == bool(done.stdout.strip())
