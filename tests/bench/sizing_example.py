"""The guide "Size your deployment", from its first command to the verification of the advice.

    python tests/bench/sizing_example.py runs/sizing --report docs/measurements

The limit is half of what the traffic has as its p95 of the time to first token, so that there is
something to ask for.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from table import machine_line

from loadgen.locality.trace_sources import recorded_run
from loadgen.sweep.table import WHOLE

KVSWARM = (sys.executable, "-m", "loadgen.cli.main")
CALIBRATION = "run calibrate --target vllm --kv-tokens 5120 --out runs/calibration"
TRAFFIC = "run batched --target vllm --kv-tokens 5120 -u 4 -t 60s --out runs/a"
TWIN = "calibrate runs/calibration runs/a -o twin.json"
ADVICE = "advise runs/a --twin twin.json --slo 'ttft_ms.p95<={bound}' --verify runs/verified"
PAGE = "sizing.md"


@dataclass(frozen=True, slots=True)
class Made:
    """A command, and what it said on its standard output."""

    command: str
    said: str

    @property
    def markdown(self) -> Iterator[str]:
        """The command, then what it said."""
        yield f"<!-- needs: engine -->\n```sh\nkvswarm {self.command}\n```\n"
        if self.said:
            yield f"```text\n{self.said}\n```\n"


def made(command: str, folder: Path) -> Made:
    """Run it there. Exits with what it said where it has nothing to show."""
    done = subprocess.run(
        [*KVSWARM, *shlex.split(command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode not in WHOLE:
        sys.exit(f"{done.stdout}kvswarm {command} ended with exit code {done.returncode}")
    return Made(command, done.stdout.strip())


def half_of_p95_ms(run: Path) -> int:
    """In two digits."""
    times_ms = recorded_run(run).requests.latency("ttft_ms")
    return int(float(f"{np.quantile(times_ms[~np.isnan(times_ms)], 0.95) / 2:.2g}"))


def page(runs: list[Made], twin: Made, advice: Made) -> Iterator[str]:
    """Markdown."""
    yield "# From a run to advice to verification\n"
    yield (
        "The commands of [the guide](../guides/twin.md) and what they said, on"
        f" {datetime.now(UTC):%Y-%m-%d} on {machine_line()}. The limit is half of the p95 that the"
        " traffic has now. `make sizing` makes this page.\n"
    )
    yield "Two minutes of unlike requests, and a minute of the traffic:\n"
    for each in runs:
        yield from Made(each.command, "").markdown
    yield "A twin of the server:\n"
    yield from twin.markdown
    yield "The advice, and runs on the engine that could overturn it:\n"
    yield from advice.markdown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="that does not exist yet")
    parser.add_argument("--report", type=Path, help="folder of the page")
    parsed = parser.parse_args()
    try:
        parsed.folder.mkdir(parents=True)
    except OSError as error:
        sys.exit(f"{parsed.folder} cannot be made ({error.strerror}): name a new folder")
    runs = [made(command, parsed.folder) for command in (CALIBRATION, TRAFFIC)]
    twin = made(TWIN, parsed.folder)
    bound = half_of_p95_ms(parsed.folder / "runs" / "a")
    text = "\n".join(page(runs, twin, made(ADVICE.format(bound=bound), parsed.folder)))
    sys.stdout.write(text)
    if parsed.report is not None:
        (parsed.report / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
