"""Orders of admission in random cases, on vLLM's scheduler object with a virtual clock.

    python tests/bench/scheduler_study.py [--seeds 92] [--out DIR]

Deterministic: a case is made of its family and its seed. The policy was chosen on the lower half
of the seeds; musts and tables are of the upper half, which nothing was fitted to. Writes cases.csv
and, of a whole study, docs/measurements/scheduler-study.md with its picture. Exit code 3 when a
must is missed.
"""

import argparse
import csv
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).parents[1] / "scheduler"))

from engine_shape import settings
from run_folder import new_folder
from scheduler_markdown import table
from scheduler_study_baselines import DfsWeightQueue, LpmQueue, QueueEngine
from scheduler_study_cases import FAMILIES, StudyCase, study_case
from scheduler_study_limits import limits
from scheduler_study_reach import hindsight_rows
from scheduler_study_rows import (
    ALIKE,
    METRICS,
    MUCH_WORSE,
    OURS,
    SGLANG,
    STOCK,
    WORSE,
    StudyRow,
    asks_of,
    geometric_mean,
    ratios,
    served,
    share_above,
    study_row,
)
from virtual_engine import VirtualEngine

SEEDS, MISSED = 92, 3
NAMES = {"tokens": "tokens computed", "mean_s": "mean latency", "p99_s": "p99 latency"}
DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "measurements" / "scheduler-study.md"
PICTURE = DOCS / "images" / "scheduler-study.svg"

ENGINES: dict[str, Callable[[StudyCase], VirtualEngine]] = {
    STOCK: lambda case: VirtualEngine(case.shape),
    OURS: lambda case: VirtualEngine(replace(case.shape, plugin=settings())),
    SGLANG: lambda case: QueueEngine(LpmQueue, case.shape),
    "SGLang's dfs-weight": lambda case: QueueEngine(DfsWeightQueue, case.shape),
}


@dataclass(frozen=True, slots=True)
class StudyMust:
    """`found` must not be above `most`."""

    measure: str
    most: float
    found: float
    is_share: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table of musts."""
        most, found = (
            f"{value:.1%}" if self.is_share else f"{value:.3f}" for value in (self.most, self.found)
        )
        return self.measure, most, found, "met" if self.is_met else "**missed**"

    @property
    def is_met(self) -> bool:
        """Whether it holds."""
        return self.found <= self.most


def run_case(family: str, seed: int, is_reported: bool) -> list[StudyRow]:
    """All orders on a case, stock first; more by hindsight where the case is reported."""
    logging.disable(logging.WARNING)
    case = study_case(family, seed)
    asks = asks_of(case)
    ledgers = {order: served(make(case), asks) for order, make in ENGINES.items()}
    rows = [study_row(case, order, each, ledgers[STOCK]) for order, each in ledgers.items()]
    return rows + (hindsight_rows(case, asks, ledgers) if is_reported else [])


def study_musts(rows: Sequence[StudyRow]) -> list[StudyMust]:
    """Against stock and, metric by metric, against SGLang's longest prefix match."""
    limits = {"tokens": (0.83, 0.01), "mean_s": (0.86, 0.03), "p99_s": (0.93, 0.08)}
    musts = []
    for metric, (most, worse) in limits.items():
        values = ratios(rows, OURS, STOCK, metric)
        musts.append(StudyMust(f"{metric} / stock, geometric mean", most, geometric_mean(values)))
        found = share_above(values, WORSE)
        musts.append(StudyMust(f"{metric}: worse than stock by > 3 % in", worse, found, True))
    much = share_above(ratios(rows, OURS, STOCK, "p99_s"), MUCH_WORSE)
    musts.append(StudyMust("p99_s: worse than stock by > 25 % in", 0.01, much, True))
    other = [row.same_order for row in rows if row.fits and row.order == OURS]
    musts.append(StudyMust("all fits: another order than stock in", 0.0, 1 - fmean(other), True))
    for metric in METRICS:
        found = share_above(ratios(rows, OURS, SGLANG, metric), WORSE)
        musts.append(StudyMust(f"{metric}: worse than SGLang's lpm by > 3 % in", 0.03, found, True))
    return musts


def page(rows: Sequence[StudyRow], chosen_on: Sequence[StudyRow]) -> str:
    """The generated page: musts, orders, families, and the other half of the seeds."""
    seeds = [row.seed for row in rows]
    cases = len({(row.family, row.seed) for row in rows})
    return "\n\n".join(
        (
            "# The scheduler in random cases",
            _headline(rows),
            "Made by `make bench-scheduler`, from nothing but seeds: "
            f"{cases} cases of {len(FAMILIES)} families, seeds {min(seeds)} to {max(seeds)}. Each"
            " is run by vLLM's own scheduler object on a virtual clock, once in each order. The"
            " policy was chosen on as many other seeds, whose figures stand at the end.",
            f"![Ratio to stock of each case, sorted](../images/{PICTURE.name})",
            "## Musts",
            table(("must", "at most", "found", ""), [must.cells for must in study_musts(rows)]),
            "## Orders, against vLLM's own",
            _orders(rows),
            "## Families, policy `reuse` against vLLM's own",
            _families(rows),
            "## Loads, policy `reuse` against vLLM's own",
            _loads(rows),
            "Of one burst, or as a share of what vLLM completes when all wait at once. Where nobody"
            " waits no order gains.",
            "## Where SGLang's lpm has the lower mean",
            _lower_means(rows),
            limits(rows),
            "## The seeds that the policy was chosen on",
            _orders(chosen_on),
        )
    )


def _headline(rows: Sequence[StudyRow]) -> str:
    tokens, means, tails = (ratios(rows, OURS, STOCK, metric) for metric in METRICS)
    return (
        f"Policy `{OURS}` computes {geometric_mean(tokens):.2f} of the tokens of vLLM's own order."
        f" It takes {geometric_mean(means):.2f} of its mean latency and"
        f" {geometric_mean(tails):.2f} of its p99, which is more than 3 % worse in"
        f" {share_above(tails, WORSE):.1%} of the cases, more than 25 % in"
        f" {share_above(tails, MUCH_WORSE):.1%}."
    )


def _orders(rows: Sequence[StudyRow]) -> str:
    head = ("order", *(f"{m}{what}" for m in METRICS for what in ("", ", > 3 % worse")))
    lines = []
    for order in ENGINES:
        if order != STOCK:
            lines.append((order, *_cells([ratios(rows, order, STOCK, m) for m in METRICS])))
    return table(head, lines)


def _families(rows: Sequence[StudyRow]) -> str:
    parts = {name: [row for row in rows if row.family == name] for name in FAMILIES}
    return _parts("family", parts)


def _loads(rows: Sequence[StudyRow]) -> str:
    loads = sorted({row.load for row in rows}, key=lambda load: load or 0.0)
    return _parts(
        "load", {f"{load or 'burst'}": [r for r in rows if r.load == load] for load in loads}
    )


def _parts(name: str, parts: Mapping[str, Sequence[StudyRow]]) -> str:
    head = (name, *(f"{m}{what}" for m in METRICS for what in ("", ", > 3 % worse")))
    lines = [
        (part, *_cells([ratios(own, OURS, STOCK, m) for m in METRICS]))
        for part, own in parts.items()
    ]
    return table(head, lines)


def _lower_means(rows: Sequence[StudyRow]) -> str:
    """Whether the cases in which lpm's mean is lower are such in which it computes less."""
    means, tokens, tails = (
        ratios(rows, OURS, other, metric)
        for other, metric in ((SGLANG, "mean_s"), (SGLANG, "tokens"), (STOCK, "p99_s"))
    )
    theirs = ratios(rows, SGLANG, STOCK, "p99_s")
    lower = [n for n, ratio in enumerate(means) if ratio > WORSE]
    if not lower:
        return "In none of the cases by more than 3 %."
    same = fmean(tokens[n] <= 1 / ALIKE for n in lower)
    longer = fmean(theirs[n] > WORSE for n in lower), fmean(tails[n] > WORSE for n in lower)
    return (
        f"By more than 3 % in {len(lower) / len(means):.1%} of the cases. In {same:.1%} of these it"
        " computes no fewer tokens: it lets requests with little left to compute pass older ones."
        f" Its p99 is worse than vLLM's by more than 3 % in {longer[0]:.1%} of them, that of"
        f" `{OURS}` in {longer[1]:.1%}. `{OURS}` lets a request pass only for tokens that would be"
        " computed again."
    )


def _cells(columns: Iterable[Sequence[float]]) -> list[str]:
    return [
        text
        for values in columns
        for text in (f"{geometric_mean(values):.3f}", f"{share_above(values, WORSE):.1%}")
    ]


def draw(rows: Sequence[StudyRow], file: Path) -> None:
    """The ratio to stock of each case, sorted, for the three metrics."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for metric, colour in zip(METRICS, ("#1f77b4", "#2ca02c", "#d62728"), strict=True):
        values = sorted(ratios(rows, OURS, STOCK, metric))
        shares = [(n + 0.5) / len(values) for n in range(len(values))]
        axes.plot(shares, values, label=NAMES[metric], color=colour)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_yticks([0.2, 0.3, 0.5, 0.7, 1.0, 1.3], ["0.2", "0.3", "0.5", "0.7", "1", "1.3"])
    axes.set_xlabel("share of cases, from the most gained")
    axes.set_ylabel("policy reuse / vLLM's own order")
    axes.legend(loc="lower right")
    figure.savefig(file, metadata={"Date": None})


def measure(seeds: int, file: Path, workers: int | None) -> list[StudyRow]:
    """All families and seeds, the reported half first; cases that the file has are not run again,
    others are added to it as they are done."""
    rows = read_rows(file)
    done = {(row.family, row.seed) for row in rows}
    halves = [*range(seeds // 2, seeds), *range(seeds // 2)]
    cases = [(f, seed) for seed in halves for f in FAMILIES if (f, seed) not in done]
    with ProcessPoolExecutor(workers) as pool, file.open("a", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, [field.name for field in fields(StudyRow)])
        if not rows:
            writer.writeheader()
        reported = [seed >= seeds // 2 for _, seed in cases]
        names, numbers = zip(*cases, strict=True) if cases else ((), ())
        for found in pool.map(run_case, names, numbers, reported, chunksize=2):
            writer.writerows(map(asdict, found))
            out.flush()
            rows += found
    return sorted(rows, key=lambda row: row.seed)


def read_rows(file: Path) -> list[StudyRow]:
    """Those of an earlier run that was cut off, if there was one."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            StudyRow(
                family=cells["family"],
                seed=int(cells["seed"]),
                fits=cells["fits"] == "True",
                load=float(cells["load"]) if cells["load"] else None,
                order=cells["order"],
                tokens=int(cells["tokens"]),
                mean_s=float(cells["mean_s"]),
                p99_s=float(cells["p99_s"]),
                same_order=cells["same_order"] == "True",
                bound_tokens=int(cells["bound_tokens"]),
            )
            for cells in csv.DictReader(lines)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="so many of each family")
    parser.add_argument(
        "--out", type=Path, help="folder for cases.csv; one cut off is gone on with"
    )
    parser.add_argument("--workers", type=int, help="so many cases at once; otherwise all cores")
    parsed = parser.parse_args()
    out = new_folder(parsed.out, "bench-scheduler-study", "")
    rows = measure(parsed.seeds, out / "cases.csv", parsed.workers)
    reported = [row for row in rows if row.seed >= parsed.seeds // 2]
    text = page(reported, [row for row in rows if row.seed < parsed.seeds // 2])
    sys.stdout.write(f"{text}\n\nwritten to {out}\n")
    if parsed.seeds == SEEDS:
        PAGE.write_text(f"{text}\n", encoding="utf-8")
        draw(reported, PICTURE)
    return 0 if all(must.is_met for must in study_musts(reported)) else MISSED


if __name__ == "__main__":
    sys.exit(main())
