"""What gates make of pairs of runs: false alarms, and slow-downs that were found."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from gate_runs import Plan
from scipy.stats import binomtest

from loadgen.compare.comparison import compare
from loadgen.compare.gate import BROKEN, UNDECIDED, parse_gate
from loadgen.compare.metrics import parse_statistic
from loadgen.compare.noise import Noise, measure_noise
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import read_run
from loadgen.compare.sides import Sides

GATES = (
    "ttft_ms.mean<=+0%",
    "ttft_ms.p50<=+0%",
    "itl_mean_ms.mean<=+0%",
    "itl_mean_ms.p50<=+0%",
    "e2e_ms.mean<=+0%",
    "e2e_ms.p50<=+0%",
    "e2e_ms.p95<=+0%",
    "requests_per_s>=-0%",
    "output_tokens_per_s>=-0%",
    "ttft_ms.p95<=+10%, output_tokens_per_s>=-5%, errors<=0.1%",
)
MOST_ALARMS, LEAST_FOUND, LEAST_EFFECT = 0.05, 0.90, 0.15
LEAST_PAIRS = 40


@dataclass(frozen=True, slots=True)
class GateRow:
    """One gate: how often it broke and could not decide on identical pairs, how often it broke on
    slow ones, and by how much its metric differs on the pooled runs (None for several metrics)."""

    gate: str
    pairs: int
    alarms: int
    undecided: int
    effect: float | None
    found: int
    slow_pairs: int

    @property
    def must_find(self) -> bool:
        """Whether the slow-down is large enough in its metric."""
        return self.effect is not None and self.effect >= LEAST_EFFECT

    @property
    def is_met(self) -> bool:
        """Few alarms; and found, where there is something to find."""
        quiet = self.alarms <= MOST_ALARMS * self.pairs
        return quiet and (not self.must_find or self.found >= LEAST_FOUND * self.slow_pairs)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The runs, read once, in pairs of base and new. Each pair is of two other runs, but a run is
    in several: pairs are less independent than their number says."""

    noise: Noise
    identical: tuple[tuple[ComparedRun, ComparedRun], ...]
    slow: tuple[tuple[ComparedRun, ComparedRun], ...]

    @classmethod
    def of(cls, plan: Plan) -> "Evidence":
        """Read what the plan's runs left."""
        runs = [read_run(path) for path in plan.identical_folders]
        slow = [read_run(path) for path in plan.slow_folders]
        rest = runs[plan.noise :]
        half = len(rest) // 2
        alike = [
            *neighbours(range(half), plan.reach),
            *neighbours(range(half, 2 * half), plan.reach),
        ]
        against = product(range(len(slow)), range(plan.reach + 1))
        return cls(
            measure_noise(runs[: plan.noise]),
            tuple((rest[base], rest[new]) for base, new in alike),
            tuple((rest[(n + 3 * step) % len(rest)], slow[n]) for n, step in against),
        )


def neighbours(runs: range, reach: int) -> list[tuple[int, int]]:
    """Each with the next `reach`. Which of two is the base alternates, so that a drift of the
    machine is no one's fault."""
    pairs = [(each, other) for each in runs for other in runs if each < other <= each + reach]
    return [pair if n % 2 else pair[::-1] for n, pair in enumerate(pairs)]


def judge_gates(evidence: Evidence) -> list[GateRow]:
    """Every gate on every pair."""
    return [_judge(evidence, gate) for gate in GATES]


def _judge(evidence: Evidence, gate: str) -> GateRow:
    codes = list(_codes(evidence, evidence.identical, gate))
    found = list(_codes(evidence, evidence.slow, gate))
    return GateRow(
        gate=gate,
        pairs=len(codes),
        alarms=codes.count(BROKEN),
        undecided=codes.count(UNDECIDED),
        effect=None if "," in gate else _effect(evidence.slow, gate),
        found=found.count(BROKEN),
        slow_pairs=len(found),
    )


def _codes(
    evidence: Evidence, pairs: Sequence[tuple[ComparedRun, ComparedRun]], gate: str
) -> Iterator[int]:
    limits = parse_gate(gate)
    for base, new in pairs:
        sides = Sides((base,), (new,), evidence.noise)
        yield compare(sides, limits=limits, vary=("target_arguments",)).exit_code


def _effect(pairs: Sequence[tuple[ComparedRun, ComparedRun]], gate: str) -> float | None:
    """How much worse the pooled slow runs are: 0.2 is 20 % more time, or as much less done."""
    statistic = parse_statistic(gate.partition(">=" if ">=" in gate else "<=")[0])
    sides = Sides(tuple(base for base, _ in pairs), tuple(new for _, new in pairs))
    base, new = sides.figures(statistic)
    if not base or not new:
        return None
    return new / base - 1 if statistic.metric.better == "lower" else base / new - 1


def report(evidence: Evidence, rows: Sequence[GateRow]) -> str:
    """Tables in Markdown."""
    noise = evidence.noise
    spread = [scales["log"] for scales in noise.deviations.values()]
    total = list(noise.totals.values())
    lines = [
        f"{len(evidence.identical)} pairs of identical runs, each with those close to it; the"
        f" spread between runs from {len(noise.runs)} others: figures differ by"
        f" {_percent(float(np.median(total)))} in the median of the metrics, by"
        f" {_percent(float(np.median(spread)))} beyond what a run knows.",
        "",
        "| gate | alarms | 95 % interval | undecided | effect of the slow-down | found |",
        "|---|---:|---|---:|---:|---:|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines)


def _line(row: GateRow) -> str:
    interval = binomtest(row.alarms, row.pairs).proportion_ci(0.95)
    cells = (
        f"`{row.gate}`",
        f"{row.alarms} of {row.pairs}",
        f"{_percent(interval.low)} to {_percent(interval.high)}",
        str(row.undecided),
        "-" if row.effect is None or math.isnan(row.effect) else _percent(row.effect),
        f"{row.found} of {row.slow_pairs}",
    )
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
