"""The short forms of `make torture`."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import tiers
from fake_router import fleet_catalog
from torture import FAULTS


def played(*words: object) -> str:
    script = str(Path(__file__).with_name("torture.py"))
    command = [sys.executable, script, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kills_and_each_kind_of_fault_leave_whole_runs() -> None:
    printed = played("--kills", 4, "--faults", len(FAULTS), "--seed", 808)
    assert "4 kills, 8 faults, 0 broke an invariant" in printed
    assert [kind for kind in FAULTS if f" fault: {kind}" not in printed] == []


def test_starts_that_are_interrupted_leave_nothing(tmp_path: Path) -> None:
    words = f"--words=--targets {fleet_catalog(tmp_path)} --model m"
    printed = played(
        *("--starts", 3, "--targets", "single,pair", "--within", 4, words, "--seed", 909)
    )
    assert "6 starts, 0 broke an invariant" in printed


@pytest.mark.parametrize("seed", range(len(tiers.FAULTS)))
def test_a_run_without_records_is_told_and_the_series_goes_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "KVSWARM", ("true",))
    _, broken = tiers.one(seed)
    assert any("run.json" in each for each in broken)
    assert any("requests.csv" in each for each in broken)
