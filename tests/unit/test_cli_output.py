"""What a command prints, where it cannot be written."""

import subprocess
import sys
from pathlib import Path

import pytest

NO_SPACE = "kvswarm: cannot write to stdout: No space left on device: send the output elsewhere\n"


@pytest.mark.parametrize("arguments", [("targets",), ("--help",), ("compare", "--help"), ()])
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "loadgen.cli.main", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, NO_SPACE)
