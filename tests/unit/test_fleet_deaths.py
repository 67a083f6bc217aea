"""Engines that die behind a router, with programs that stand in for both."""

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_router import fleet_catalog

from loadgen.errors import TargetError
from loadgen.runs.exit_code import TARGET_DIED
from loadgen.targets.catalog import load_catalog
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget, start_target

LONGEST_S = 60.0
"""Nothing here takes so long, however busy the machine is."""


class Heard(list[TargetError]):
    """What is told of deaths; `some` is set once there is any."""

    def __init__(self) -> None:
        super().__init__()
        self.some = asyncio.Event()

    def hear(self, error: TargetError) -> None:
        self.append(error)
        self.some.set()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def pair(tmp_path: Path, heard: Heard) -> AsyncIterator[RunningTarget]:
    spec = load_catalog(fleet_catalog(tmp_path))["pair"]
    settings = TargetSettings("m", stop_grace_s=0.5)
    async with start_target(spec, settings, tmp_path / "log", heard.hear) as target:
        yield target


def kill(target: RunningTarget, *names: str) -> None:
    for name in names:
        os.kill(target.facts()["pids"][name][0], signal.SIGKILL)


async def test_a_fleet_goes_on_without_one_of_its_engines(
    pair: RunningTarget, heard: Heard
) -> None:
    before_s = time.perf_counter()
    kill(pair, "engine-1")
    await asyncio.wait_for(heard.some.wait(), LONGEST_S)
    (death,) = pair.deaths
    assert (death.engine, death.reason) == ("engine-1", "was ended by SIGKILL")
    assert before_s <= death.at_perf_s <= time.perf_counter()
    assert str(heard[0]).startswith("engine-1 was ended by SIGKILL")
    pair.check()
    with pytest.raises(TargetError, match="engine-1 was ended by SIGKILL"):
        pair.check_whole()


async def test_a_fleet_that_is_made_cold_is_whole_again(pair: RunningTarget, heard: Heard) -> None:
    before = pair.facts()["pids"]
    kill(pair, "engine-2")
    await asyncio.wait_for(heard.some.wait(), LONGEST_S)
    assert await pair.make_cold() == "cold"
    pair.check_whole()
    assert pair.deaths == []
    assert set(map(tuple, pair.facts()["pids"].values())).isdisjoint(map(tuple, before.values()))


@pytest.mark.parametrize("names", [("front",), ("engine-1", "engine-2")])
async def test_without_its_router_or_all_its_engines_a_fleet_is_dead(
    pair: RunningTarget, names: tuple[str, ...]
) -> None:
    kill(pair, *names)
    error = await asyncio.wait_for(pair.wait_died(), LONGEST_S)
    assert str(error).startswith(names)
    with pytest.raises(TargetError, match="SIGKILL"):
        pair.check()


@contextmanager
def running(folder: Path, time_of_run: str) -> Iterator[subprocess.Popen[str]]:
    """A run on the pair that has had some replies."""
    command = [sys.executable, "-m", "loadgen.cli.main", "run", "unordered", "--model", "m"]
    target = ["--targets", fleet_catalog(folder), "--target", "pair", "--out", folder / "run"]
    small = ["--contexts", 2, "--context-tokens", 50, "--output-tokens", 2, "-u", 2, "-r", 2]
    process = subprocess.Popen(
        [*command, *map(str, (*target, *small, "-t", time_of_run, "--max-lag-ms", 60_000))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(rows(folder)) >= 10, process)
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def rows(folder: Path, name: str = "requests.csv") -> list[dict[str, str]]:
    path = folder / "run" / name
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def told(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / name).read_text()))


def kill_in_run(folder: Path, *names: str) -> None:
    pids = told(folder, "run.json")["target"]["pids"]
    for name in names:
        os.kill(pids[name][0], signal.SIGKILL)


def test_a_run_goes_on_without_an_engine_and_tells_what_that_cost(tmp_path: Path) -> None:
    with running(tmp_path, "8s") as process:
        until(lambda: len(rows(tmp_path, "server_metrics.csv")) >= 4, process)
        kill_in_run(tmp_path, "engine-1")
        printed, said = process.communicate(timeout=LONGEST_S)
    assert process.returncode == TARGET_DIED, said
    assert "Traceback" not in said
    assert "engine-1 has died: the run goes on with the other engines" in said
    assert "ENGINE DIED: engine-1 was ended by SIGKILL at " in printed

    description, summary = told(tmp_path, "run.json"), told(tmp_path, "summary.json")
    assert (description["exit_code"], description["host_died"]) == (TARGET_DIED, False)
    (death,) = summary["engine_deaths"]
    assert (death["engine"], death["reason"]) == ("engine-1", "was ended by SIGKILL")
    every = rows(tmp_path)
    failed = [row for row in every if row["outcome"] not in ("ok", "cancelled")]
    assert len(every) == summary["requests"]
    assert death["failed"] == len(failed) >= 3
    assert any("is gone" in row["error"] for row in failed), "the router's words"
    assert 0 < death["served_again_s"] < summary["duration_s"]
    last_s = max(float(row["end_s"]) for row in failed)
    later = [row for row in every if row["outcome"] == "ok" and float(row["sent_s"]) > last_s]
    assert {row["engine"] for row in later} == {"engine-2"}

    tokens = [float(row["prompt_tokens"]) for row in rows(tmp_path, "server_metrics.csv")]
    assert tokens == sorted(tokens), "what a dead engine had stays in the sum"
    assert summary["server"]["counter_reset"] is False
    hit_rates = [each["hit_rate"] for each in summary["replicas"]["engines"].values()]
    assert hit_rates == [0.25, 0.25]


@pytest.mark.parametrize("names", [("front",), ("engine-1", "engine-2")])
def test_a_run_ends_with_its_router_or_all_its_engines(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    with running(tmp_path, "600s") as process:
        kill_in_run(tmp_path, *names)
        _, said = process.communicate(timeout=LONGEST_S)
    assert process.returncode == TARGET_DIED, said
    assert "ending the run" in said
    assert "Traceback" not in said
    description = told(tmp_path, "run.json")
    assert (description["exit_code"], description["host_died"]) == (TARGET_DIED, True)
    assert len(rows(tmp_path)) == told(tmp_path, "summary.json")["requests"]
