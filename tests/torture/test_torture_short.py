"""The short form of `make torture`."""

import subprocess
import sys
from pathlib import Path


def test_kills_and_faults_leave_whole_runs() -> None:
    script = str(Path(__file__).with_name("torture.py"))
    done = subprocess.run(
        [sys.executable, script, "--kills", "4", "--faults", "4", "--seed", "808"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kills, 4 faults, 0 broke an invariant" in done.stdout
