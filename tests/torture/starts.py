"""Starts of engines that are interrupted at random moments: no process and no folder may be left.

`torture.py --starts N --targets A,B` makes the trials. A process is known by a mark in its
environment, which it inherits, or by having been seen below the command.
"""

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
from run_process import KVSWARM

MARK = "KVSWARM_TORTURE"
LOAD = (
    *("-u", "2", "-r", "2", "-t", "3s", "--contexts", "2", "--context-tokens", "50"),
    *("--output-tokens", "2", "--drain", "2", "--max-lag-ms", "60000"),
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOMENTS = ("command", "log", "log", "command", "log", "later log", "log", "command", "log", "load")
"""What a start has come to before the time until its signal is drawn. They come in turn: ten starts
have met them all, and few of them wait for a whole start."""
BEFORE_ENGINES_S, TOGETHER_S = 1.5, 1.0
STARTING_S, LONGEST_S, LEAVING_S = 300.0, 120.0, 30.0
"""Until load, from the signal to the end of the command, and then until no process is left."""


@dataclass(frozen=True)
class StartTrials:
    """How starts of a target are interrupted: `words` stand behind `kvswarm run --target NAME`, the
    signal comes within `within_s` of its moment."""

    target: str
    words: str
    within_s: float

    def one(self, seed: int) -> tuple[str, list[str]]:
        """A start: what was done in it, and what it left or how it ended wrong."""
        chance = random.Random(f"start {self.target} {seed}")
        number, to_all = chance.choice(SIGNALS), chance.choice((False, True))
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            start = InterruptedStart.begin(Path(folder), self.target, shlex.split(self.words))
            try:
                moment = MOMENTS[seed % len(MOMENTS)]
                start.reach(moment)
                most_s = BEFORE_ENGINES_S if moment == "command" else self.within_s
                time.sleep(chance.uniform(0.0, most_s))
                phase = start.phase
                for _ in range(chance.choice((1, 1, 2))):
                    start.send(number, to_all)
                    time.sleep(chance.uniform(0.0, 0.5))
                start.check()
            finally:
                start.end()
        whom = "group" if to_all else "command"
        return f"{self.target}: {number.name} to the {whom} {phase}", start.broken


@dataclass
class InterruptedStart:
    """A command that is under way in a folder of its own."""

    process: subprocess.Popen[str]
    place: Path
    seen: set[psutil.Process] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, place: Path, target: str, words: list[str]) -> "InterruptedStart":
        (place / "tmp").mkdir()
        command = [*KVSWARM, "run", "unordered", "--target", target, "--out", str(place / "run")]
        # A program that names itself would write over its environment, and with it the mark.
        marked = {MARK: str(place), "SPT_NOENV": "1", "TMPDIR": str(place / "tmp")}
        marked["PYTHONFAULTHANDLER"] = "1"
        with (place / "output").open("w") as output:
            process = subprocess.Popen(
                [*command, *LOAD, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
                env={**os.environ, **marked},
            )
        return cls(process, place)

    def reach(self, moment: str) -> None:
        """Wait until its first service has a log, a later one has, or load has begun."""
        if moment == "command":
            return
        self._until(lambda: bool(self.services))
        if moment != "log":
            time.sleep(TOGETHER_S)
            first = len(self.services)
            self._until(lambda: moment == "later log" and len(self.services) > first)

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STARTING_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.has_load or holds():
                return
            time.sleep(0.05)

    @property
    def services(self) -> list[str]:
        """Those that have been started, by name."""
        return sorted(path.stem for path in (self.place / "run" / "engine").glob("*.log"))

    @property
    def has_load(self) -> bool:
        return (self.place / "run" / "requests.csv").is_file()

    @property
    def phase(self) -> str:
        """How far it has come."""
        if self.process.poll() is not None:
            return "after its end"
        if self.has_load:
            return "under load"
        return f"while it starts {'+'.join(self.services) or 'nothing yet'}"

    def send(self, number: signal.Signals, to_all: bool) -> None:
        """The signal, to the command or to its process group."""
        self.seen.update(self._marked())
        with suppress(psutil.Error):
            self.seen.update(psutil.Process(self.process.pid).children(recursive=True))
        with suppress(ProcessLookupError):
            if to_all:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)

    def check(self) -> None:
        """Wait for its end and look at what is there then."""
        try:
            code = self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.broken.append(f"it goes on for {LONGEST_S:g} s: {self._said()}")
            return
        cut_short = {code for number in SIGNALS for code in (128 + number, -number)}
        if code not in {0, 1, *cut_short}:
            self.broken.append(f"exit code {code}: {self._said()}")
        deadline = time.monotonic() + LEAVING_S
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            self.broken.append(f"left behind: {left}")
        if folders := [path.name for path in (self.place / "tmp").iterdir()]:
            self.broken.append(f"a temporary folder is left: {folders}")

    def left(self) -> list[psutil.Process]:
        """Its living processes."""
        return sorted(filter(_lives, self.seen | set(self._marked())), key=lambda each: each.pid)

    def end(self) -> None:
        """Kill what it has left."""
        self.process.kill()
        self.process.wait()
        for each in self.left():
            with suppress(psutil.Error):
                each.kill()

    def _marked(self) -> Iterator[psutil.Process]:
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.environ().get(MARK) == str(self.place):
                    yield each

    def _said(self) -> str:
        return (self.place / "output").read_text(errors="replace")[-800:]


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
