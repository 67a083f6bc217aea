"""Fixtures of the tests on replies that once misled the product."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replay_host import ReplayHost, RunCase

sys.path.append(str(Path(__file__).parents[1] / "runs"))
from run_process import Ran, run_swarm


@pytest.fixture(scope="session")
def replays() -> Iterator[ReplayHost]:
    """Answers by every file of `replies/`, in this process."""
    with ReplayHost() as host:
        yield host


@pytest.fixture
def run_case(replays: ReplayHost, tmp_path: Path) -> RunCase:
    """`kvswarm run` against one reply: `run_case("name", "-u", 2, …)`; two users by default."""
    load = ("--contexts", 2, "-u", 2, "-r", 2, "-t", "2s")

    def run(name: str, *more: object, model: tuple[str, ...] = ("--model", "m")) -> Ran:
        replays.asked.clear()
        return run_swarm(replays.url_of(name), tmp_path / "run", *model, *load, *more)

    return run
