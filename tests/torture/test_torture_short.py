"""The short forms of `make torture`."""

import json
import subprocess
import sys
from collections.abc import Callable
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


def ended_trial(folder: Path) -> tiers.TierTrial:
    process = subprocess.Popen(["true"], text=True)
    process.wait()
    return tiers.TierTrial(process, "vllm-tiered", folder, folder)


def test_a_soak_of_too_few_turnovers_has_not_passed() -> None:
    pytest.importorskip("vllm")
    command = [sys.executable, tiers.__file__, "--trials", "0", "--soak-hours", "0.02"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1
    assert "0 trials, 1 broke something" in done.stdout


def test_trials_of_tiers_walk_through_all_faults_and_begin_with_what_is_stored() -> None:
    assert len(tiers.PAIRS) == sum(len(targets) for _, targets, _ in tiers.FAULTS.values())
    first = tiers.PAIRS[: tiers.TRIALS]
    assert {kind for kind, _ in first} == set(tiers.FAULTS)
    kinds = ("files cut", "files gone", "files damaged", "disk full")
    assert {(kind, target) for kind in kinds for target in tiers.FILES} <= set(first)
    assert ("frames damaged", "vllm-lmcache-codec") in first


@pytest.mark.parametrize("spoil", [tiers.truncate, tiers.flip, tiers.remove])
def test_every_second_chunk_is_spoilt_and_no_checksum_beside_it(
    spoil: Callable[[tiers.TierTrial], None], tmp_path: Path
) -> None:
    names = [f"{at}{suffix}" for at in range(4) for suffix in (".bin", ".sum")]
    for name in names:
        (tmp_path / name).write_bytes(b"0123")
    spoil(ended_trial(tmp_path))
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert [name for name in names if found.get(name) != b"0123"] == ["0.bin", "2.bin"]


@pytest.mark.parametrize(("tokens", "expected"), [(1200, []), (0, ["no file was read"])])
def test_a_trial_with_files_must_have_read_some(
    tokens: int, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "output").touch()
    (tmp_path / "requests.csv").write_text("outcome\nok\n")
    server = {"disk_prompt_tokens": tokens}
    summary = {"requests": 1, "outcomes": {"ok": 1}, "server": server}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    trial = ended_trial(tmp_path)
    tiers._check(trial, tmp_path, {0})
    assert trial.broken == expected


@pytest.mark.parametrize("seed", [0, tiers.TRIALS - 1])
def test_a_run_without_records_is_told_and_the_series_goes_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "KVSWARM", ("true",))
    _, broken = tiers.one(seed)
    assert any("run.json" in each for each in broken)
    assert any("requests.csv" in each for each in broken)
