"""Kills and faults at random moments of small runs: nothing may be lost, left or wrong.

    python tests/torture/torture.py [--kills N] [--faults N] [--seed N] [--at-once N]
    python tests/torture/torture.py --starts N [--targets A,B] [--within S] [--words TEXT]

The second interrupts N starts of each target, of all without `--targets`. More `--words` of
`kvswarm run` say which model and which cache.

Each case is made from its seed alone. One that breaks an invariant is printed with the command that
replays it, and the exit code is then 1.
"""

import argparse
import csv
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
from run_process import HostProcess, Ran, arguments, host_process
from starts import SIGNALS, StartTrials

from loadgen.targets.catalog import load_catalog

LOAD = ("-u", 6, "-r", 6, "-t", "3s", "--output-tokens", 4, "--drain", 2, "--max-silence", 2)
LONGEST_S = 90.0
LEAVING_S = 20.0
"""How long the processes of a run may take to leave after its leader."""
CUT_SHORT = {130, 129, -signal.SIGINT, -signal.SIGHUP, -signal.SIGTERM}
"""Of a run that was ended before it had begun."""
FINISHED = {0, 1}
FULL_OR_DELETED = 6
FAILING = ("storm", "truncating", "malformed", "endless")
FAULTS = (*FAILING, "host dies", "host hangs", "disk full", "directory deleted")


@dataclass
class Trial:
    """A run that is under way, and what is known of how it may end."""

    host: HostProcess
    process: subprocess.Popen[str]
    out: Path
    codes: set[int]
    complete: bool = True
    """Whether every request must have its row at the end."""
    broken: list[str] = field(default_factory=list)

    def group(self) -> list[psutil.Process]:
        """Its living processes."""
        return [each for each in psutil.process_iter() if self._owns(each)]

    def workers(self) -> list[psutil.Process]:
        return [each for each in self.group() if each.pid != self.process.pid]

    def _owns(self, process: psutil.Process) -> bool:
        with suppress(ProcessLookupError, psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                return os.getpgid(process.pid) == self.process.pid
        return False

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)


def kill(trial: Trial, chance: random.Random, has_workers: bool) -> str:
    """Send a signal to the leader, a worker or all of them, perhaps twice."""
    whom = chance.choice(("leader", "group", "worker") if has_workers else ("leader", "group"))
    name = chance.choice(("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "SIGSTOP"))
    number = getattr(signal, name)
    time.sleep(chance.uniform(0.5, 5.0))
    times = chance.choice((1, 1, 2))
    for _ in range(times):
        _send(trial, whom, number, chance)
        time.sleep(chance.uniform(0.0, 0.5))
    if name == "SIGSTOP" and whom != "worker":
        time.sleep(chance.uniform(0.1, 2.0))
        _send(trial, "group", signal.SIGCONT, chance)
    elif name == "SIGKILL" and whom != "worker":
        trial.codes, trial.complete = FINISHED | {-signal.SIGKILL}, False
    elif name != "SIGSTOP":
        trial.codes |= CUT_SHORT
    if whom == "worker" and name in ("SIGKILL", "SIGSTOP"):
        trial.complete = False
    return f"{name} to the {whom}, {times} times"


def _send(trial: Trial, whom: str, number: int, chance: random.Random) -> None:
    with suppress(ProcessLookupError, psutil.Error):
        if whom == "group":
            os.killpg(trial.process.pid, number)
        elif whom == "leader":
            trial.process.send_signal(number)
        elif workers := sorted(trial.workers(), key=lambda each: each.pid):
            chance.choice(workers).send_signal(number)


def disturb(trial: Trial, kind: str, chance: random.Random) -> None:
    """What happens outside of the run while it is on."""
    if kind not in ("host dies", "host hangs", "directory deleted"):
        return
    _until_load(trial)
    time.sleep(chance.uniform(0.0, 1.5))
    if kind == "directory deleted":
        shutil.rmtree(trial.out, ignore_errors=True)
    else:
        trial.host.process.send_signal(signal.SIGKILL if kind == "host dies" else signal.SIGSTOP)


def _until_load(trial: Trial) -> None:
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline and trial.process.poll() is None:
        with suppress(OSError):
            if len((trial.out / "requests.csv").read_bytes().splitlines()) > 1:
                return
        time.sleep(0.05)


def codes_of(kind: str) -> set[int]:
    """How a run with this fault may end."""
    if kind in FAILING:
        return {1}
    if kind in ("disk full", "directory deleted"):
        return {FULL_OR_DELETED}
    return {1, 3} if kind == "host hangs" else {3}


def one(name: str, seed: int) -> tuple[str, list[str]]:
    """A case: what was done in it, and which invariants it broke."""
    chance = random.Random(f"{name} {seed}")
    is_kill = name == "kill"
    kind = "" if is_kill else FAULTS[seed % len(FAULTS)]
    workers = ("--processes", 2) if chance.random() < (0.8 if is_kill else 0.4) else ()
    model = kind if kind in FAILING else "normal"
    longer = (
        ()
        if kind not in ("host dies", "host hangs", "directory deleted", "disk full")
        else ("-t", "30s")
    )
    room = chance.randint(3_000, 25_000) if kind == "disk full" else resource.RLIM_INFINITY
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, host_process() as host:
        place = Path(folder)
        (place / "tmp").mkdir()
        with (place / "output").open("w") as output:
            process = subprocess.Popen(
                arguments(host.url, place / "run", "--model", model, *LOAD, *workers, *longer),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(place / "tmp")},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
            )
        codes = FINISHED.copy() if is_kill else codes_of(kind)
        trial = Trial(host, process, place / "run", codes)
        try:
            done = kill(trial, chance, bool(workers)) if is_kill else kind
            if not is_kill:
                disturb(trial, kind, chance)
            _check(trial, place, kind)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return f"{done}{' with workers' if workers else ''}", trial.broken


def _check(trial: Trial, place: Path, kind: str) -> None:
    with suppress(subprocess.TimeoutExpired):
        trial.process.wait(LONGEST_S)
    output = (place / "output").read_text(errors="replace")
    ran = Ran(trial.process.returncode, output, trial.out)
    trial.expect(ran.code in trial.codes, f"exit code {ran.code}: {output[-800:]}")
    trial.expect("Traceback" not in output, f"a traceback: {output[-800:]}")
    deadline = time.monotonic() + LEAVING_S
    while trial.group() and time.monotonic() < deadline:
        time.sleep(0.1)
    trial.expect(not trial.group(), f"left behind: {trial.group()}")
    trial.expect(not list((place / "tmp").iterdir()), "a temporary folder is left")
    if (trial.out / "requests.csv").is_file():
        _check_rows(trial, ran, kind)


def _check_rows(trial: Trial, ran: Ran, kind: str) -> None:
    text = (trial.out / "requests.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    trial.expect(text.endswith("\n"), "the last row is torn")
    trial.expect(len({len(row) for row in rows}) == 1, "a row is not whole")
    ids = Counter(row[0] for row in rows[1:])
    trial.expect(all(count == 1 for count in ids.values()), "a row is there twice")
    if ran.code not in FINISHED | {3}:
        return
    has_summary = (trial.out / "summary.json").is_file()
    trial.expect(has_summary, "no summary")
    if not has_summary:
        return
    summary = ran.json("summary.json")
    trial.expect(summary["requests"] == len(rows) - 1, "the summary counts other requests")
    trial.expect(ran.json("run.json").get("exit_code") == ran.code, "run.json has another code")
    if trial.complete and not kind.startswith("host"):
        sent = len(trial.host.prompts())
        trial.expect(summary["lost_workers"] == 0, "a worker was lost")
        trial.expect(len(rows) - 1 >= sent, f"{len(rows) - 1} rows of {sent} requests")


@dataclass(frozen=True)
class Case:
    """`act` makes it of its seed; `more` is what its replay needs beside that."""

    kind: str
    seed: int
    act: Callable[[int], tuple[str, list[str]]]
    more: str = ""

    @property
    def replay(self) -> str:
        return f"python tests/torture/torture.py --{self.kind}s 1 --seed {self.seed}{self.more}"


def cases_of(parsed: argparse.Namespace) -> Iterator[Case]:
    for kind, count in (("kill", parsed.kills), ("fault", parsed.faults)):
        for number in range(count):
            yield Case(kind, parsed.seed + number, partial(one, kind))
    catalog = load_catalog()
    for target in parsed.targets.split(",") if parsed.targets else catalog:
        has_size = target in catalog and catalog[target].engine.block_size
        words = parsed.words if parsed.words is not None else "--kv-tokens 2560" if has_size else ""
        trials = StartTrials(target, words, parsed.within)
        told = ("--targets", target, "--within", f"{parsed.within:g}", f"--words={words}")
        for number in range(parsed.starts):
            yield Case("start", parsed.seed + number, trials.one, f" {shlex.join(told)}")


def run_all(cases: Sequence[Case], at_once: int) -> int:
    """All cases; the number of those that broke something."""
    begun_s, broken = time.monotonic(), 0
    done: Counter[str] = Counter()
    with ThreadPoolExecutor(at_once) as threads:
        results = threads.map(lambda case: case.act(case.seed), cases)
        for case, (what, wrong) in zip(cases, results, strict=True):
            done[f"{case.kind}: {what}"] += 1
            if wrong:
                broken += 1
                print(f"BROKEN {case.kind} {case.seed} ({what}): {'; '.join(wrong)}")
                print(f"  replay: {case.replay}")
            sys.stdout.flush()
    for what, count in sorted(done.items()):
        print(f"{count:5} {what}")
    made = [f"{count} {kind}s" for kind, count in Counter(each.kind for each in cases).items()]
    seconds = f"{time.monotonic() - begun_s:.0f} s"
    print(", ".join((*made, f"{broken} broke an invariant", seconds)))
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--starts", type=int, default=0)
    parser.add_argument("--targets", help="of --starts, with commas between")
    parser.add_argument("--within", type=float, default=12.0, help="most seconds from the moment")
    parser.add_argument("--words", help="more of `kvswarm run`, instead of a small cache")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000 * 8)
    parser.add_argument("--at-once", type=int, default=2)
    parsed = parser.parse_args()
    for number in SIGNALS:  # a shell's job in the background ignores some, and children with it
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    print(f"seeds from {parsed.seed}", flush=True)
    return int(run_all(list(cases_of(parsed)), parsed.at_once) > 0)


if __name__ == "__main__":
    sys.exit(main())
