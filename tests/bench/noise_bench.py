"""False alarms and misses of `kvswarm compare` under ten models of noise and one more.

    python tests/bench/noise_bench.py [--trials 200] [--seed 0] [--processes 2] [--report FOLDER]

Every trial writes run directories of simulated requests and compares them as `kvswarm compare`
does: two of the same speed, and one against a side that takes 15 % longer for every request. An
alarm is a row that is called better or worse although nothing differs, or a gate that breaks. The
bound is what a test could find that has the same estimate and knows its true spread. Exit code 1
where alarms are surely more than 5 %, or a slow-down of the mean is missed that the bound allows.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from noise_models import MODELS, NoiseModel, SimulatedRun
from scipy.stats import binomtest, norm
from table import machine_line

from loadgen.compare.comparison import Comparison, compare
from loadgen.compare.gate import BROKEN, parse_gate
from loadgen.compare.metrics import parse_statistic
from loadgen.compare.noise import measure_noise
from loadgen.compare.run_reader import read_run
from loadgen.compare.sides import Sides

STATISTICS = ("ttft_ms.mean", "ttft_ms.p95")
GATE = "ttft_ms.mean<=+0%"
SLOWER = 1.15
MOST_ALARMS, LEAST_FOUND, SURELY = 0.05, 0.90, 0.01
PAGE = "noise.md"
CONTEXTS = 6
CHANCE = 1
"""Keeps what a run meets apart from the requests it sends: the same numbers drew both of the first
model, whose demands and noise were then one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Of both statistics the estimate and the verdict, without a change and with one; whether the
    gate broke."""

    alike: tuple[tuple[float, str], ...]
    slower: tuple[tuple[float, str], ...]
    gate_alarm: bool
    gate_found: bool


def write_run(path: Path, run: SimulatedRun, seed: int) -> Path:
    """A run directory of these requests, with what a comparison wants to know of it."""
    path.mkdir(parents=True)
    rows = [
        f"{place},c{place % CONTEXTS},q{place},{at:.6f},{at:.6f},{at + took:.6f},"
        f"{1000 * took:.4f},{1000 * took:.4f},100,8,ok"
        for place, (at, took) in enumerate(zip(run.at_s, run.took_s, strict=True))
    ]
    header = (
        "request_id,context_id,question_id,sent_s,scheduled_s,end_s,ttft_ms,e2e_ms,prompt_tokens,"
        "output_tokens,outcome"
    )
    (path / "requests.csv").write_text("\n".join((header, *rows, "")))
    facts = {
        "options": {"contexts": CONTEXTS, "seed": seed},
        "seed": seed,
        "model": "simulated",
        "target": {"name": "simulated", "argv": {}, "env": {}},
        "cache_state": "cold",
        "machine": {"cpus": 1},
        "exit_code": 0,
    }
    (path / "run.json").write_text(json.dumps(facts))
    return path


def trial(which: int, seed: int) -> Trial:
    """One of the model at this place of MODELS, from files to verdicts."""
    model = MODELS[which]
    with tempfile.TemporaryDirectory() as scratch:
        place, chance = Path(scratch), np.random.default_rng([seed, which, CHANCE])

        def side(name: str, slower: float, seeds: Sequence[int]) -> list[Path]:
            return [
                write_run(
                    place / f"{name}-{at}",
                    model.run(np.random.default_rng([seed, number]), chance, slower),
                    number,
                )
                for at, number in enumerate(seeds)
            ]

        known = side("noise", 1.0, [0] * model.noise_runs)
        noise = measure_noise([read_run(path) for path in known]) if known else None
        repeats = range(model.repeats)
        base, same, other = (
            tuple(read_run(path) for path in side(name, slower, repeats))
            for name, slower in (("base", 1.0), ("same", 1.0), ("slower", SLOWER))
        )
        found = [_compared(Sides(base, new, noise)) for new in (same, other)]
    return Trial(*map(_rows, found), *(each.exit_code == BROKEN for each in found))


def _compared(sides: Sides) -> Comparison:
    return compare(sides, [parse_statistic(name) for name in STATISTICS], parse_gate(GATE))


def _rows(comparison: Comparison) -> tuple[tuple[float, str], ...]:
    by_name = {row.statistic.name: row for row in comparison.rows}
    return tuple(
        (row.change.estimate if row.change else math.nan, row.verdict)
        for row in (by_name[name] for name in STATISTICS)
    )


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """One statistic of a model: counts over `trials`, the effect of the slower side, and the share
    of slow-downs that a test with the same estimate and its true spread would find."""

    model: str
    statistic: str
    trials: int
    alarms: int
    gate_alarms: int
    effect: float
    found: int
    bound: float
    undecided: int

    @property
    def missed(self) -> tuple[str, ...]:
        """Alarms that are surely too many; a mean that is not found where the bound says it can
        be."""
        is_loud = any(
            binomtest(count, self.trials, MOST_ALARMS, "greater").pvalue <= SURELY
            for count in (self.alarms, self.gate_alarms)
        )
        must_find = self.statistic.endswith("mean") and self.bound >= LEAST_FOUND
        is_lost = must_find and self.found < LEAST_FOUND * self.trials
        return ("alarms",) * is_loud + ("found",) * is_lost

    @property
    def is_met(self) -> bool:
        """Whether nothing is missed."""
        return not self.missed


def rows_of(model: NoiseModel, trials: Sequence[Trial]) -> Iterator[NoiseRow]:
    """One for each statistic."""
    for place, name in enumerate(STATISTICS):
        alike, slower = ([getattr(t, kind)[place] for t in trials] for kind in ("alike", "slower"))
        before, after = (np.log1p([change for change, _ in side]) for side in (alike, slower))
        effect = float(np.nanmean(after))
        deviation = float(np.sqrt(np.nanmean(before**2)))
        is_mean = place == 0
        yield NoiseRow(
            model.name,
            name,
            len(trials),
            sum(verdict in ("better", "worse") for _, verdict in alike),
            sum(each.gate_alarm for each in trials) if is_mean else 0,
            math.expm1(effect),
            sum(verdict == "worse" for _, verdict in slower),
            float(norm.sf(norm.isf(MOST_ALARMS / 2) - effect / deviation)),
            sum(verdict == "too little data" for _, verdict in slower),
        )


def table(rows: Sequence[NoiseRow]) -> str:
    """In Markdown."""
    lines = [
        "| noise | metric | alarms | gate's alarms | effect | found | can be found | must |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        gate = str(row.gate_alarms) if row.statistic.endswith("mean") else ""
        undecided = f" ({row.undecided} too few data)" if row.undecided else ""
        cells = (
            row.model,
            f"`{row.statistic}`",
            str(row.alarms),
            gate,
            f"{100 * row.effect:+.0f} %",
            f"{100 * row.found / row.trials:.0f} %{undecided}",
            f"{100 * row.bound:.0f} %",
            f"**missed**: {', '.join(row.missed)}" if row.missed else "met",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rows: Sequence[NoiseRow], trials: int) -> str:
    """What is published."""
    met = sum(row.is_met for row in rows)
    return (
        "# Measured: verdicts under models of noise\n\n"
        f"`make bench-noise` on {machine_line()}: {trials} trials for each model.\n\n"
        "Each trial compares simulated runs of a minute as `kvswarm compare` does, with the same"
        " requests on both sides. **Alarms** are trials in which nothing differs, and the row says"
        f" better or worse, or the gate `{GATE}` breaks. **Found** are trials that say worse where"
        f" every request takes {100 * (SLOWER - 1):.0f} % longer; the effect is larger where"
        " requests queue. **Can be found** is the share that a test could find which has the same"
        f" estimate and knows its true spread.\n\n{table(rows)}\n\n"
        f"{met} of {len(rows)} rows meet their must: alarms not surely above"
        f" {100 * MOST_ALARMS:.0f} %, and a mean found in {100 * LEAST_FOUND:.0f} % where that can"
        " be. Single runs of a machine whose runs differ by themselves cannot know it: their rows"
        " count as alarms only where they say more than that.\n"
    )


def main() -> int:
    """Run all trials and tell; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--report", type=Path, metavar="FOLDER", help=f"write {PAGE} there")
    options = parser.parse_args()
    rows: list[NoiseRow] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for which, model in enumerate(MODELS):
            seeds = range(options.seed, options.seed + options.trials)
            trials = list(pool.map(partial(trial, which), seeds, chunksize=5))
            rows += rows_of(model, trials)
            sys.stdout.write(f"{table(rows[-len(STATISTICS) :])}\n")
            sys.stdout.flush()
    text = page(rows, options.trials)
    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
        (options.report / PAGE).write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
