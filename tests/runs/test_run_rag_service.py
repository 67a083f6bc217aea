"""The RAG service that `kvswarm run rag --target A,B` starts, with engines that are not real."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_engine import CATALOG
from rag_process import rag_process, write_corpus
from run_process import KVSWARM, TIMEOUT_S, wait_until

import rag_store

TARGETS = f"""{CATALOG}
[targets.one]
extends = "sound"

[targets.two]
extends = "sound"
"""
QUICK = """
import sys
from rag_store.cli.main import main
sys.exit(main([*sys.argv[1:], "--embedder", "hashing"]))
"""
"""The service with an embedder that needs no model."""


@dataclass(frozen=True)
class Place:
    """Folders of a test; the home is kept between runs, which begin in `cwd`."""

    folder: Path
    cwd: Path | None = None

    def command(self, name: str, *more: object) -> list[str]:
        catalog = self.folder / "targets.toml"
        catalog.write_text(TARGETS)
        corpus = self.folder / "corpus"
        if not corpus.exists():
            write_corpus(corpus)
        target = ["--targets", catalog, "--corpus", corpus, "--out", self.folder / name]
        small = ["--contexts", 3, "--output-tokens", 2, "-u", 1, "--max-lag-ms", 60_000]
        return [*KVSWARM, "run", "rag", "--model", "m", *map(str, [*target, *small, *more])]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KVSWARM_HOME": str(self.folder / "home")}

    def run(self, name: str, *more: object) -> "Ran":
        done = subprocess.run(
            self.command(name, *more),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=self.cwd,
            env=self.environment,
        )
        return Ran(done.returncode, done.stderr, self.folder / name)

    def start(self, name: str, *more: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(name, *more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=self.environment,
        )


@dataclass(frozen=True)
class Ran:
    code: int
    said: str
    out: Path

    def json(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.out / name).read_text()))


def with_service(folder: Path, program: str) -> Place:
    """Where runs start this in place of `python -m rag_store`."""
    package = folder / "cwd" / "rag_store"
    package.mkdir(parents=True)
    whole = Path(rag_store.__file__).parent
    (package / "__init__.py").write_text(f"__path__.append({str(whole)!r})")
    (package / "__main__.py").write_text(program)
    return Place(folder, folder / "cwd")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return with_service(tmp_path_factory.mktemp("place"), QUICK)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """With the embedder that runs have."""
    place = Place(tmp_path_factory.mktemp("usual"))
    return place.run("both", "--target", "one,two", "-t", "2s")


def test_one_service_serves_all_targets(ran: Ran) -> None:
    assert ran.code == 0, ran.said
    started = [line for line in ran.said.splitlines() if ": starting " in line]
    assert started == [
        "kvswarm: starting the RAG service with 3 documents …",
        *("kvswarm: starting one …", "kvswarm: starting two …"),
    ]
    urls = {ran.json(f"{name}/run.json")["rag"]["url"] for name in ("one", "two")}
    assert len(urls) == 1
    log = (ran.out / "engine" / "rag.log").read_text()
    assert log.count(f"serving 3 documents in 3 chunks at {urls.pop()}") == 1


def test_what_it_found_was_sent(ran: Ran) -> None:
    for name in ("one", "two"):
        rows = (ran.out / name / "requests.csv").read_text().splitlines()
        assert len(rows) > 3
        assert ran.json(f"{name}/summary.json")["label_accuracy"] == 1


def test_labels_that_need_no_service_start_none(place: Place) -> None:
    ran = place.run("shuffled", "--target", "one", "--labels", "shuffled", "-t", "1s")
    assert ran.code == 0, ran.said
    assert "RAG" not in ran.said
    assert not (ran.out / "engine" / "rag.log").exists()


def test_a_service_that_runs_already_is_used(place: Place, tmp_path: Path) -> None:
    with rag_process(tmp_path / "library", "--corpus", place.folder / "corpus") as url:
        ran = place.run("given", "--target", "one", "--rag-url", url, "-t", "1s")
    assert ran.code == 0, ran.said
    assert "starting the RAG service" not in ran.said
    assert ran.json("run.json")["rag"]["url"] == url


def test_a_service_that_cannot_start_is_told(tmp_path: Path) -> None:
    place = with_service(tmp_path, "raise SystemExit('no room for chunks')")
    ran = place.run("unborn", "--target", "one,two", "-t", "1s")
    assert ran.code == 3
    log = ran.out / "engine" / "rag.log"
    assert f"kvswarm: rag exited with code 1: no room for chunks (log: {log})" in ran.said
    assert "starting one" not in ran.said


def family(process: subprocess.Popen[str], requests: Path) -> list[psutil.Process]:
    """All processes of a run that sends requests."""
    wait_until(lambda: requests.is_file() and len(requests.read_text().splitlines()) > 2)
    return psutil.Process(process.pid).children(recursive=True)


def service_of(processes: list[psutil.Process]) -> psutil.Process:
    (found,) = [
        each
        for each in processes
        if "rag_store" in each.cmdline() and "loadgen.targets.guard" not in each.cmdline()
    ]
    return found


def test_a_service_that_dies_ends_the_run_and_is_named(place: Place) -> None:
    process = place.start("killed", "--target", "one,two")
    try:
        processes = family(process, place.folder / "killed" / "one" / "requests.csv")
        service_of(processes).kill()
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 3
    assert said.count("kvswarm: rag was ended by SIGKILL (log: ") == 2, "for each target"
    assert "starting two" not in said
    rows = (place.folder / "killed" / "one" / "requests.csv").read_text().splitlines()
    assert rows[1].count(",") == rows[0].count(",")
    assert not psutil.wait_procs(processes, timeout=20)[1]


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("end", [interrupt, subprocess.Popen.kill])
def test_nothing_is_left_running(
    place: Place, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    name = end.__name__
    process = place.start(name, "--target", "one")
    try:
        processes = family(process, place.folder / name / "requests.csv")
        service_of(processes)
        end(process)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert not psutil.wait_procs(processes, timeout=30)[1]


def test_an_end_while_the_service_starts_leaves_nothing(place: Place) -> None:
    process = place.start("early", "--target", "one")
    log = place.folder / "early" / "engine" / "rag.log"
    try:
        wait_until(log.is_file)
        processes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "starting one" not in said
    assert not psutil.wait_procs(processes, timeout=20)[1]
