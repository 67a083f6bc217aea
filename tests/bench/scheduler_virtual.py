"""The exact half: vLLM's scheduler object without a model, on a virtual clock; CSV files.

    python tests/bench/scheduler_virtual.py --out DIR [--quick]

A process of its own, as it imports vLLM, which the process that times real engines must not hold.
"""

import argparse
import sys
from pathlib import Path

from scheduler_rows import (
    AdmissionRow,
    VirtualBatchRow,
    VirtualPoissonRow,
    VirtualStarvationRow,
    adopt,
    write_rows,
)

sys.path.append(str(Path(__file__).parents[1] / "scheduler"))

import bench_admission
import bench_batch
import bench_poisson

SEEDS, QUICK_SEEDS = range(10), range(3)
PLUGINS = {name: plugin for name, plugin in bench_batch.POLICIES.items() if plugin is not None}


def measure(out: Path, quick: bool) -> None:
    """All rows into their files; takes two minutes, `quick` a quarter of that."""
    seeds = QUICK_SEEDS if quick else SEEDS
    batches = bench_batch.batch_rows(seeds=seeds)
    write_rows([adopt(VirtualBatchRow, row) for row in batches], out)
    poisson = bench_poisson.poisson_rows(PLUGINS, seeds=seeds)
    write_rows([adopt(VirtualPoissonRow, row) for row in poisson], out)
    starvation = [
        bench_poisson.starvation_row(name, plugin) for name, plugin in bench_batch.POLICIES.items()
    ]
    write_rows([adopt(VirtualStarvationRow, row) for row in starvation], out)
    repeats = 1 if quick else bench_admission.REPEATS
    admission = bench_admission.admission_rows(repeats=repeats)
    write_rows([adopt(AdmissionRow, row) for row in admission], out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parsed = parser.parse_args()
    measure(parsed.out, parsed.quick)


if __name__ == "__main__":
    main()
