"""`kvswarm sweep` on targets, with engines that are not real: starts, caches, deaths."""

import csv
import json
import subprocess
import sys
from pathlib import Path

from fake_engine import CATALOG

TARGETS = f"""{CATALOG}
[targets.mortal]
extends = "sound"
args = ["--lives", "0"]
"""
SWEEP = """
name = "engines"
[options]
targets = "CATALOG"
model = "m"
context-tokens = 50
output-tokens = 2
users = 1
run-time = "1s"
max-lag-ms = 60000
[axes]
target = ["sound", "mortal"]
contexts = [2, 3]
[[skip]]
target = "mortal"
contexts = 3
"""


def test_cells_share_an_engine_that_is_cold_for_each(tmp_path: Path) -> None:
    (tmp_path / "targets.toml").write_text(TARGETS)
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("CATALOG", str(tmp_path / "targets.toml")))
    command = [sys.executable, "-m", "loadgen.cli.main", "sweep", str(tmp_path / "sweep.toml")]
    command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("starting sound for 2 runs") == 1

    with (tmp_path / "out" / "cells.csv").open(newline="") as file:
        rows = {(row["target"], row["contexts"]): row for row in csv.DictReader(file)}
    assert "engine exited with code 7" in rows["mortal", "2"]["fault"]
    assert rows["mortal", "2"]["exit_code"] == "3"
    sound = [rows["sound", "2"], rows["sound", "3"]]
    assert [(row["exit_code"], row["cache_state"]) for row in sound] == [("0", "cold")] * 2
    runs = [tmp_path / "out" / row["run"] for row in sound]
    pids = [json.loads((run / "run.json").read_text())["target"]["pids"] for run in runs]
    assert pids[0] == pids[1]
    assert (runs[0] / "engine" / "engine.log").samefile(runs[1] / "engine" / "engine.log")
