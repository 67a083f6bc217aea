"""Fixtures of the tests of runs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_process import HostProcess, Run, host_process, run_swarm

sys.path.append(str(Path(__file__).parents[1] / "unit"))


@pytest.fixture
def host() -> Iterator[HostProcess]:
    with host_process() as running:
        yield running


@pytest.fixture
def run(host: HostProcess, tmp_path: Path) -> Run:
    """Run against the host: `run("--model", "normal", "-u", 2, …)`."""
    return lambda *more, **kw: run_swarm(host.url, tmp_path / "run", *more, **kw)
