"""Kills, hangs and damaged files under real engines with a tier of KV: nothing lost, left or hung.

    python tests/torture/tiers.py [--trials N] [--seed N] [--soak-hours H]

First comes a soak of so many counted hours on vLLM's scheduler alone, with memory and with files:
every cell that is read must be of its tokens, over 100 turnovers of the memory or more. Then each
trial is a `kvswarm run` of some seconds on an engine that it starts, disturbed at a random moment.
It must end in time with an exit code that tells what happened, whole rows and no process left. One
that does not is printed with its seed, and the exit code is then 1. Seeds walk through all pairs of
a fault and a target. On two cores a trial takes a minute: one runs after the other.
"""

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scheduler"))
from run_process import KVSWARM, Ran

LOAD = (
    *("batched", "--batch-size", "1", "--batches", "0", "-u", "2", "-r", "2", "-t", "30s"),
    *("--contexts", "12", "--context-tokens", "1200", "--output-tokens", "4"),
    *("--kv-tokens", "2560", "--l1-gb", "0.05", "--drain", "5", "--max-silence", "5"),
)
"""More contexts than the memory holds: most are read from what lies behind it."""
FILES = ("vllm-tiered", "vllm-lmcache-files")
CACHE_NODES = ("vllm-lmcache-codec", "vllm-lmcache-sharded", "vllm-lmcache-regional")
NODES = (*CACHE_NODES, "vllm-offload-sharded", "vllm-offload-regional")
CACHES = ("vllm-lmcache", "vllm-lmcache-files", *CACHE_NODES)
TARGETS = ("vllm-offload", "vllm-lmcache", *FILES, *NODES)
CHUNK_SUFFIXES = (".bin", ".data")
TURNOVERS = 100
FULL_BYTES = 1 << 18  # less than a chunk, more than a log
STARTING_S, LONGEST_S, LEAVING_S = 180.0, 90.0, 20.0
"""Until the first row, from then on, and for the processes to leave."""


@dataclass
class TierTrial:
    """A run that is under way, with the folder of its tier's files."""

    process: subprocess.Popen[str]
    target: str
    out: Path
    files: Path
    pids: dict[str, list[int]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Note what should not be."""
        if not holds:
            self.broken.append(what)

    @contextmanager
    def whatever_goes_wrong(self) -> Iterator[None]:
        """Note what is not there that should be, as a file of a run that ended at its start."""
        try:
            yield
        except (OSError, ValueError, LookupError, psutil.Error, redis.RedisError) as error:
            self.expect(False, f"{type(error).__name__}: {error}")

    def is_under_load(self) -> bool:
        """Whether some requests have come to their end."""
        with suppress(OSError):
            return len((self.out / "requests.csv").read_bytes().splitlines()) > 6
        return False

    def send(self, number: int, name: str) -> None:
        """A signal to all processes of one of its services."""
        for pid in self.pids.get(name, []):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def nodes(self) -> list[psutil.Process]:
        """The servers behind its cache."""
        pids = [pid for name, those in self.pids.items() if "valkey" in name for pid in those]
        found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        return [each for each in found if each.name() == "valkey-server"]

    def stored(self) -> list[Path]:
        """The chunks of its tier, without checksums beside them."""
        return sorted(path for path in self.files.rglob("*") if path.suffix in CHUNK_SUFFIXES)


def truncate(trial: TierTrial) -> None:
    """Every second chunk is cut to a half."""
    for path in trial.stored()[::2]:
        with suppress(OSError):
            os.truncate(path, path.stat().st_size // 2)


def flip(trial: TierTrial) -> None:
    """Every second chunk has another byte, at its size."""
    for path in trial.stored()[::2]:
        with suppress(OSError):
            content = bytearray(path.read_bytes())
            content[len(content) // 3] ^= 1
            path.write_bytes(content)


def fill(trial: TierTrial) -> None:
    """Every write of a chunk fails from now on, as on a full disk."""
    for pid in (pid for name in ("vllm", "lmcache") for pid in trial.pids.get(name, [])):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))


def remove(trial: TierTrial) -> None:
    """Every second chunk is gone."""
    for path in trial.stored()[::2]:
        path.unlink(missing_ok=True)


def damage(trial: TierTrial) -> None:
    """Every second frame on each node has another last byte, or is cut to a half."""
    for node in trial.nodes():
        port = node.cmdline()[0].rpartition(":")[2]  # valkey names itself by its address
        with redis.Redis(port=int(port), protocol=2) as client:
            for at, name in enumerate(client.keys("kvswarm:*")[::2]):
                frame = client.get(name) or b"x"
                cut = frame[: len(frame) // 2]
                client.set(name, cut if at % 2 else frame[:-1] + bytes([frame[-1] ^ 1]))


FAULTS: dict[str, tuple[Callable[[TierTrial], None], tuple[str, ...], set[int]]] = {
    "engine killed": (lambda t: t.send(signal.SIGKILL, "vllm"), TARGETS, {3}),
    "engine hangs": (lambda t: t.send(signal.SIGSTOP, "vllm"), TARGETS, {3}),
    "cache killed": (lambda t: t.send(signal.SIGKILL, "lmcache"), CACHES, {3}),
    "cache hangs": (lambda t: t.send(signal.SIGSTOP, "lmcache"), CACHES, {1, 3}),
    "files cut": (truncate, FILES, {0}),
    "files gone": (remove, FILES, {0}),
    "files damaged": (flip, FILES, {0}),
    "node killed": (lambda t: t.nodes()[0].kill(), NODES, {0}),
    "node hangs": (lambda t: t.nodes()[0].suspend(), NODES, {0}),
    "frames damaged": (damage, NODES, {0}),
    "disk full": (fill, FILES, {0}),
}
"""What is done, on which targets, and how such a run may end."""


def pairs() -> list[tuple[str, str]]:
    """All faults on all their targets: first those of stored bytes, then each fault in turn."""
    of_files = [kind for kind, (_, names, _) in FAULTS.items() if names == FILES]
    stored = [(kind, name) for kind in of_files for name in FILES]
    in_turn = [
        (kind, names[(turn + number) % len(names)])
        for turn in range(len(TARGETS))
        for number, (kind, (_, names, _)) in enumerate(FAULTS.items())
    ]
    return [*dict.fromkeys((*stored, ("frames damaged", "vllm-lmcache-codec"), *in_turn))]


PAIRS, TRIALS = pairs(), 16
"""So many trials are of every fault."""


def one(seed: int) -> tuple[str, list[str]]:
    """A trial: what was done in it, and what it broke."""
    chance = random.Random(seed)
    kind, target = PAIRS[seed % len(PAIRS)]
    act, _, codes = FAULTS[kind]
    with tempfile.TemporaryDirectory(prefix="torture-tiers-") as folder:
        place = Path(folder)
        (place / "files").mkdir()
        more = ("--l2-dir", str(place / "files")) if target in FILES else ()
        with (place / "output").open("w") as output:
            process = subprocess.Popen(
                [*KVSWARM, "run", *LOAD, "--target", target, *more, "--out", str(place / "run")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        trial = TierTrial(process, target, place / "run", place / "files")
        try:
            with trial.whatever_goes_wrong():
                _disturb(trial, act, chance)
            with trial.whatever_goes_wrong():
                _check(trial, place, codes)
        finally:
            _end(trial)
    return f"{kind}: {target}", trial.broken


def _disturb(trial: TierTrial, act: Callable[[TierTrial], None], chance: random.Random) -> None:
    deadline = time.monotonic() + STARTING_S
    while not trial.is_under_load() and trial.process.poll() is None:
        if time.monotonic() > deadline:
            trial.expect(False, "no request was done in time")
            return
        time.sleep(0.1)
    trial.pids = Ran(0, "", trial.out).json("run.json")["target"]["pids"]
    time.sleep(chance.uniform(0.0, 8.0))
    act(trial)


def _check(trial: TierTrial, place: Path, codes: set[int]) -> None:
    with suppress(subprocess.TimeoutExpired):
        trial.process.wait(LONGEST_S)
    output = (place / "output").read_text(errors="replace")
    ran = Ran(trial.process.returncode, output, trial.out)
    trial.expect(ran.code in codes, f"exit code {ran.code}: {output[-800:]}")
    trial.expect("Traceback" not in output, f"a traceback: {output[-800:]}")
    deadline = time.monotonic() + LEAVING_S
    while _living(trial) and time.monotonic() < deadline:
        time.sleep(0.2)
    trial.expect(not _living(trial), f"left behind: {_living(trial)}")
    rows, summary = ran.rows, ran.json("summary.json")
    trial.expect(summary["requests"] == len(rows), "the summary counts other requests")
    trial.expect(None not in {cell for row in rows for cell in row.values()}, "a torn row")
    trial.expect(summary["outcomes"]["ok"] > 0, "nothing was ok")
    if trial.target in FILES and codes == {0}:
        told = "lmcache_lookup_hit_l2_tokens" if "lmcache" in trial.target else "disk_prompt_tokens"
        trial.expect(bool(summary["server"][told]), "no file was read")


def _living(trial: TierTrial) -> list[int]:
    """Of its services' processes."""
    return [pid for pids in trial.pids.values() for pid in pids if psutil.pid_exists(pid)]


def _end(trial: TierTrial) -> None:
    for pid in _living(trial):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(trial.process.pid, signal.SIGKILL)
    trial.process.wait()


def soak(hours: float, seed: int) -> bool:
    """So many on the counted clock, with memory and with files; whether all was as it should, and
    enough to tell."""
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    from digest_engine import BLOCK_BYTES, DigestEngine, tier
    from tier_soak import DEADLINE_S, OF_CHECKED_FILES, TierSoak

    broken, blocks, chunks = False, 30, 40
    for kind in ("host", "checked"):
        with (
            tempfile.TemporaryDirectory(prefix="torture-soak-") as folder,
            DigestEngine(blocks, tier(kind, chunks, Path(folder))) as engine,
        ):
            files = Path(folder) if kind == "checked" else None
            run = TierSoak(engine, seed, files, OF_CHECKED_FILES)
            run.run(hours)
            lost = blocks - engine.free_blocks
            turnovers = engine.stored_bytes / chunks / BLOCK_BYTES
            broken |= bool(engine.wrong or lost or run.longest_s > DEADLINE_S)
            broken |= turnovers < TURNOVERS or (files is not None and not run.spoilt)
            print(
                f"soak, {kind}: {hours:g} h, {run.sent} requests,"
                f" {turnovers:.0f} of at least {TURNOVERS} turnovers, {run.spoilt} files"
                f" spoilt: {engine.wrong} of {engine.checked} cells wrong, {lost} blocks lost, the"
                f" longest request took {run.longest_s:.1f} s",
                flush=True,
            )
    return not broken


def main() -> int:
    """All trials; 1 where one broke something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--soak-hours", type=float, default=24.0)
    parsed = parser.parse_args()
    begun_s, done, broken = time.monotonic(), Counter[str](), 0
    if parsed.soak_hours:
        broken += not soak(parsed.soak_hours, parsed.seed)
    for seed in range(parsed.seed, parsed.seed + parsed.trials):
        what, wrong = one(seed)
        done[what] += 1
        broken += bool(wrong)
        print(f"{seed}: {what}: {'; '.join(wrong) or 'as it should'}", flush=True)
    for what, count in sorted(done.items()):
        print(f"{count:5} {what}")
    print(f"{parsed.trials} trials, {broken} broke something, {time.monotonic() - begun_s:.0f} s")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
