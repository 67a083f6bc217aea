"""The exact half: vLLM's scheduler object without a model, on a virtual clock; CSV files.

    python tests/bench/scheduler_virtual.py --out DIR [--quick]

A process of its own, as it imports vLLM, which the process that times real engines must not hold.
"""

import argparse
import sys
from pathlib import Path

from scheduler_rows import write_rows

sys.path.append(str(Path(__file__).parents[1] / "scheduler"))

from scheduler_virtual_admission import REPEATS, admission_rows
from scheduler_virtual_batches import batch_rows
from scheduler_virtual_poisson import poisson_rows, starvation_rows

SEEDS, QUICK_SEEDS = range(10), range(3)


def measure(out: Path, quick: bool) -> None:
    """All rows into their files; takes up to eight minutes, `quick` a quarter of that."""
    seeds = QUICK_SEEDS if quick else SEEDS
    write_rows(batch_rows(seeds), out)
    write_rows(poisson_rows(seeds), out)
    write_rows(starvation_rows(), out)
    write_rows(admission_rows(1 if quick else REPEATS), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parsed = parser.parse_args()
    measure(parsed.out, parsed.quick)


if __name__ == "__main__":
    main()
