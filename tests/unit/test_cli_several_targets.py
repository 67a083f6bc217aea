"""`kvswarm run --target A,B`: the same run on each in turn, with engines that are not real."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_engine import CATALOG

from loadgen.launch.supervised import worst
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED, WRONG_USE

TARGETS = f"""{CATALOG}
[targets.sick]
extends = "sound"
args = ["--sick"]

[targets.stillborn]
extends = "sound"
args = ["--fail", "no room"]

[targets.mortal]
extends = "sound"
args = ["--lives", "3"]
"""
ALL = ("sick", "stillborn", "mortal", "sound")


def command(folder: Path, targets: str, *more: object) -> list[str]:
    catalog = folder / "targets.toml"
    catalog.write_text(TARGETS)
    kvswarm = [sys.executable, "-m", "loadgen.cli.main", "run", "unordered", "--model", "m"]
    target = ["--targets", catalog, "--target", targets, "--out", folder / "run"]
    small = ["--contexts", 2, "--context-tokens", 50, "--output-tokens", 2, "-u", 1]
    return [*kvswarm, *map(str, [*target, *small, *more])]


@dataclass(frozen=True)
class Ran:
    code: int
    said: str
    printed: str
    out: Path

    def json(self, target: str, name: str = "run.json") -> dict[str, Any]:
        return dict(json.loads((self.out / target / name).read_text()))


def run(folder: Path, targets: str, *more: object) -> Ran:
    done = subprocess.run(
        command(folder, targets, *more), capture_output=True, text=True, timeout=120, check=False
    )
    return Ran(done.returncode, done.stderr, done.stdout, folder / "run")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run on all of them; only the last one is as it should be."""
    return run(tmp_path_factory.mktemp("several"), ",".join(ALL), "-t", "2s", "--max-lag-ms", 9999)


def test_every_target_has_its_turn_whatever_became_of_the_others(ran: Ran) -> None:
    started = [line for line in ran.said.splitlines() if line.startswith("kvswarm: starting")]
    assert started == [f"kvswarm: starting {name} …" for name in ALL]
    assert ran.json("sick")["exit_code"] == FAILED
    assert not (ran.out / "stillborn" / "run.json").exists()
    assert ran.json("mortal")["exit_code"] in (FAILED, TARGET_DIED), "its swarm may not know why"
    assert ran.json("sound")["exit_code"] == DONE


def test_the_exit_code_is_that_of_the_worst(ran: Ran) -> None:
    assert ran.code == TARGET_DIED, ran.said


def test_a_failure_is_told_with_its_reason_and_without_a_traceback(ran: Ran) -> None:
    assert "engine exited with code 1: ValueError: no room" in ran.said
    assert "engine exited with code 7" in ran.said
    assert "Traceback" not in ran.said


def test_each_has_a_run_directory_with_its_own_engine_in_it(ran: Ran) -> None:
    for name in ALL:
        assert (ran.out / name / "engine" / "engine.log").is_file()
    for name, flag in (("sick", "--sick"), ("mortal", "--lives"), ("sound", "--window")):
        target = ran.json(name)["target"]
        assert target["name"] == name
        assert flag in target["argv"]["engine"]
    assert "--sick" not in ran.json("sound")["target"]["argv"]["engine"]


def test_each_is_sent_the_same(ran: Ran) -> None:
    def sent(name: str) -> list[str]:
        lines = (ran.out / name / "requests.csv").read_text().splitlines()[1:4]
        return [line.split(",")[3] + line.split(",")[4] for line in lines]

    assert len(sent("sound")) == 3
    assert sent("sick") == sent("sound")


def test_they_are_printed_side_by_side(ran: Ran) -> None:
    (heading,) = [line for line in ran.printed.splitlines() if line.split() == list(ALL)]
    table = ran.printed.partition(heading)[2].splitlines()
    (ok,) = [line.split() for line in table if line.startswith("requests ok")]
    assert ok[2:4] == ["0", "-"]
    assert int(ok[4]) == 3
    assert int(ok[5]) > 3


def test_a_wrong_option_is_found_before_the_first_engine_starts(tmp_path: Path) -> None:
    refused = run(tmp_path, "sound,sick", "--zipf", "-1")
    assert refused.code == WRONG_USE
    assert "--zipf" in refused.said
    assert "starting" not in refused.said
    assert not refused.out.exists()


def test_what_locust_does_instead_of_a_swarm_starts_no_engine(tmp_path: Path) -> None:
    listed = run(tmp_path, "sound,sick", "--list")
    assert listed.code == DONE
    assert "UnorderedUser" in listed.printed + listed.said
    assert "starting" not in listed.said


def test_what_the_last_target_cannot_take_is_found_before_the_first_starts(tmp_path: Path) -> None:
    refused = run(tmp_path, "sound,vllm-context", "--kv-tokens", 100)
    assert refused.code == WRONG_USE
    assert "--kv-tokens 100" in refused.said
    assert "starting" not in refused.said


def test_a_used_directory_of_the_last_target_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "run" / "sick").mkdir(parents=True)
    (tmp_path / "run" / "sick" / "run.json").touch()
    refused = run(tmp_path, "sound,sick")
    assert refused.code == WRONG_USE
    assert f"{tmp_path / 'run' / 'sick'} already holds a run" in refused.said


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "sound,sick", "-t", "60s"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        requests = tmp_path / "run" / "sound" / "requests.csv"
        wait_for_rows(requests, 3)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT, "the second target had no turn"
    assert "starting sick" not in said
    assert "requests ok" in printed
    assert not psutil.wait_procs(family, timeout=20)[1]


def wait_for_rows(file: Path, least: int) -> None:
    deadline = time.monotonic() + 60
    while not file.is_file() or len(file.read_text().splitlines()) <= least:
        assert time.monotonic() < deadline, "no requests"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([DONE], DONE),
        ([DONE, SATURATED, DONE], SATURATED),
        ([SATURATED, FAILED], FAILED),
        ([FAILED, WRONG_USE], WRONG_USE),
        ([WRONG_USE, TARGET_DIED, FAILED], TARGET_DIED),
        ([TARGET_DIED, 137], 137),
    ],
)
def test_the_worst_exit_code_counts(codes: Sequence[int], expected: int) -> None:
    assert worst(codes) == expected
