"""How long a simulation of an hour of traffic takes, and whether its memory stays flat.

    python tests/bench/twin_speed.py [--minutes 15 60] [--report docs/measurements]

The server is made up: some hundred requests at once, each for some ten seconds. Each length of
traffic is a `kvswarm simulate` of its own. Exit code 1 where a goal is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from table import machine_line

from loadgen.targets.demo_model import build_model
from loadgen.twin.engine import EngineShape
from loadgen.twin.model import FrontTime, TwinModel
from loadgen.twin.shape_of import CalibratedEngine
from loadgen.twin.step_time import StepTime
from loadgen.workload.corpus import load_corpus

STEP = StepTime(0.02, 2.0e-5, 1.0e-9, 2.0e-4, 1.0e-9)
FRONT = FrontTime(0.002, 1.0e-6, 0.001)
SHAPE = EngineShape(
    usable_blocks=25_000,
    block_size=16,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_model_len=8192,
)
LOAD = (
    *("unordered", "--contexts", "200", "--context-tokens", "2000", "--zipf", "1"),
    *("--output-tokens", "200", "--arrivals", "poisson", "--rate", "10", "-u", "0"),
)
SIMULATE = """
import sys
from loadgen.cli.main import main
code = main(["simulate", *sys.argv[1:]])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 1024)
sys.exit(code)
"""
"""Then prints the most memory in MB that the process has had."""
MOST_S, MOST_GROWTH = 120.0, 1.25
"""For an hour, and of memory from the shortest to the longest traffic."""
PAGE = "twin-speed.md"


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulation: `running` on average, by Little's law."""

    minutes: int
    requests_per_s: float
    running: float
    wall_s: float
    peak_mb: float


def write_twin(folder: Path) -> Path:
    """Of the made-up server."""
    tokenizer = str(build_model(folder / "tiny", "tiny", [d.text for d in load_corpus().documents]))
    engine = CalibratedEngine(SHAPE, ("vllm", "serve"), tokenizer, 131_072)
    model = TwinModel(STEP, FRONT, 0.02, 3, 0.01, {}, engine=engine.to_json())
    replace(model, lengths={"prompts": (1, 4000), "replies": (1, 400)}).write(folder / "twin.json")
    return folder / "twin.json"


def simulated(twin: Path, minutes: int) -> Simulated:
    """In a process of its own. Raises CalledProcessError."""
    words = [*LOAD, "-t", f"{minutes}m", "--twin", str(twin), "--format", "json"]
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SIMULATE, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    wall_s = time.monotonic() - began_s
    told, _, peak_mb = done.stdout.strip().rpartition("\n")
    figures = json.loads(told)["figures"]
    per_s = figures["requests_per_s"]
    return Simulated(minutes, per_s, per_s * figures["e2e_mean_ms"] / 1000, wall_s, float(peak_mb))


def verdicts(made: Sequence[Simulated]) -> Iterator[tuple[str, bool]]:
    """Each goal in words, and whether it is reached."""
    first, last = made[0], made[-1]
    hour_s = last.wall_s * 60 / last.minutes
    yield (
        f"an hour of {last.requests_per_s:.0f} requests/s with {last.running:.0f} at once takes"
        f" {hour_s:.0f} s (goal: {MOST_S:.0f} s)",
        hour_s <= MOST_S,
    )
    growth = last.peak_mb / first.peak_mb
    yield (
        f"memory for {last.minutes} minutes is {growth:.2f} times that for {first.minutes} (goal:"
        f" {MOST_GROWTH})",
        growth <= MOST_GROWTH,
    )


def page(made: Sequence[Simulated]) -> Iterator[str]:
    """Markdown."""
    yield "# How long a simulation takes\n"
    yield "```sh\nmake bench-twin-speed\n```\n"
    yield f"Measured on {datetime.now(UTC):%Y-%m-%d} on {machine_line()}, on one core of it.\n"
    for said, reached in verdicts(made):
        yield f"- {'Reached' if reached else 'Missed'}: {said}."
    yield "\n| minutes of traffic | requests/s | at once | took | peak memory |"
    yield "| ---: | ---: | ---: | ---: | ---: |"
    for each in made:
        yield (
            f"| {each.minutes} | {each.requests_per_s:.1f} | {each.running:.0f}"
            f" | {each.wall_s:.0f} s | {each.peak_mb:.0f} MB |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, nargs=2, default=[15, 60])
    parser.add_argument("--report", type=Path, help="folder of the page")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        twin = write_twin(Path(folder))
        made = [simulated(twin, minutes) for minutes in sorted(parsed.minutes)]
    text = "\n".join(page(made)) + "\n"
    sys.stdout.write(text)
    if parsed.report is not None:
        (parsed.report / PAGE).write_text(text, encoding="utf-8")
    return 0 if all(reached for _, reached in verdicts(made)) else 1


if __name__ == "__main__":
    sys.exit(main())
