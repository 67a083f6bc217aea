"""The bandwidth at which KV is loaded as soon as it is computed: calculated, and measured.

    python tests/bench/tiers_bench.py [--repeats 3] [--out DIR] [--report FOLDER]

vLLM's own offload on this machine, with loads held to a bandwidth by the worker of `kv_tiers`
(`load_bytes_per_s`). Requests of eight contexts come one after the other on a cache that holds one,
so each that follows another context is loaded, and computed where there is no tier. Time to first
token is a line over seconds a byte; where it meets that of computing is the measured break-even.
The calculated one is `kvswarm tiers`, from a run without a tier. Exit code 1: more than 10 % apart.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from loadgen.launch.sweep_run import make_sweep
from loadgen.locality.break_even import Computing
from loadgen.locality.measured import run_bytes_per_token
from loadgen.locality.prefill import prefill_rate
from loadgen.runs.exit_code import DONE, SATURATED
from loadgen.runs.recorded import RecordedRun
from loadgen.sweep.definition import Definition
from loadgen.sweep.table import Cell, read_cells

RATES_MB_PER_S = (8, 11, 16, 23, 32)
"""Around what the demo model's break-even is on two cores."""
PLAIN = "vllm"
MOST_APART = 0.1
PAGE = "tiers.md"
OPTIONS = {
    "batch-size": 1,
    "batches": 40,
    "output-tokens": 4,
    "spawn-rate": 8,
    "users": 1,
    "zipf": 0,
    "stickiness": 0,
    "contexts": 8,
    "context-tokens": 1500,
    "kv-tokens": 2048,
    "l1-gb": 0.12,
}


def targets_toml() -> str:
    """A target for each bandwidth."""
    return "\n".join(map(_target, RATES_MB_PER_S))


def _target(rate: int) -> str:
    extra = {
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": "kv_tiers.spec",
        "load_bytes_per_s": rate * 10**6,
    }
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    text = json.dumps(config).replace('"spec_name"', '"cpu_bytes_to_use":{l1_bytes},"spec_name"')
    return (
        f'[targets.link-{rate}]\ndescription = "loads at {rate} MB/s"\nextends = "vllm"\n'
        f'reset = "/reset_prefix_cache?reset_external=true"\n'
        f"args = [\"--kv-transfer-config\", '{text}']\n"
    )


@dataclass(frozen=True, slots=True)
class Crossing:
    """`computing` as calculated from runs without a tier, what was measured, and of what."""

    computing: Computing
    computed_ms: float
    loaded_ms: dict[int, float]
    measured_bytes_per_s: float

    @property
    def apart(self) -> float:
        """The calculated bandwidth over the measured one, less 1."""
        return self.computing.break_even_bytes_per_s / self.measured_bytes_per_s - 1


def crossing(cells: Sequence[Cell]) -> Crossing:
    """Of the runs of all targets."""
    plain = [cell.run for cell in cells if cell.axes["target"] == PLAIN]
    each = run_bytes_per_token(plain[0])
    assert each is not None
    rate = median([prefill_rate(run).tokens_per_s for run in plain])
    computed_ms = median([ttft for run in plain for ttft in after_another(run)])
    loaded_ms = {
        rate: median(
            [
                ttft
                for cell in cells
                if cell.axes["target"] == f"link-{rate}"
                for ttft in after_another(cell.run)
            ]
        )
        for rate in RATES_MB_PER_S
    }
    seconds_a_byte = [1 / (1e6 * rate) for rate in loaded_ms]
    slope, base = np.polyfit(seconds_a_byte, list(loaded_ms.values()), 1)
    measured = float(slope / (computed_ms - base))
    return Crossing(Computing(each, rate), computed_ms, loaded_ms, measured)


def after_another(run: Path) -> list[float]:
    """TTFT in ms of requests whose context came before, but not in the request before them."""
    requests = RecordedRun(run, is_strict=True).requests
    contexts = requests.context
    names = [contexts.names[code] for code in contexts.codes.tolist()]
    times = requests.number("ttft_ms").tolist()
    return [
        ttft
        for at, ttft in enumerate(times)
        if at and names[at] in names[:at] and names[at] != names[at - 1]
    ]


def page(found: Crossing, command: str) -> str:
    """What was measured, as Markdown."""
    rows = "\n".join(
        f"| {rate} MB/s | {ms:.0f} ms | {found.computed_ms:.0f} ms |"
        for rate, ms in found.loaded_ms.items()
    )
    calculated = found.computing.break_even_bytes_per_s
    return (
        "# Break-even of a tier: calculated and measured\n\n"
        f"```sh\n{command}\n```\n\nMeasured on {time.strftime('%Y-%m-%d', time.gmtime())} with the"
        " demo model on a CPU, with vLLM's own offload whose loads were held to a bandwidth.\n\n"
        "| bandwidth of loads | TTFT p50, loaded | TTFT p50, computed |\n| --- | ---: | ---: |\n"
        f"{rows}\n\nA token has {found.computing.bytes_per_token:,.0f} bytes and"
        f" {found.computing.tokens_per_s:,.0f} tokens are computed a second, so `kvswarm tiers`"
        f" says {calculated / 1e6:.1f} MB/s. Measured are"
        f" {found.measured_bytes_per_s / 1e6:.1f} MB/s: the calculation is"
        f" {100 * found.apart:+.1f} % off.\n"
    )


def main() -> int:
    """Measure what is missing, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-tiers"))
    parser.add_argument("--report", type=Path, metavar="FOLDER", help=f"write {PAGE} there")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    targets = options.out.with_suffix(".toml")
    targets.write_text(targets_toml(), encoding="utf-8")
    names = (PLAIN, *(f"link-{rate}" for rate in RATES_MB_PER_S))
    definition = Definition(
        name="tiers-break-even",
        locustfile="batched",
        repeats=options.repeats,
        engine_starts="once",
        options={**OPTIONS, "targets": str(targets)},
        axes={"target": list(names)},
    )
    code = make_sweep(definition, options.out)
    if code not in (DONE, SATURATED):  # a run of a late client is left out
        return code
    found = crossing([cell for cell in read_cells(options.out) if cell.valid])
    text = page(found, "make bench-tiers")
    sys.stdout.write(text)
    if options.report is not None:
        (options.report / PAGE).write_text(text, encoding="utf-8")
    return int(abs(found.apart) > MOST_APART)


if __name__ == "__main__":
    sys.exit(main())
