"""Runs against the first of them, by the verdicts of `kvswarm compare`."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dashboards.report.tables import Table, TableRow
from dashboards.report.wording import listed
from loadgen.compare import wording
from loadgen.compare.comparison import ComparedMetric as Compared
from loadgen.compare.comparison import Comparison, compare
from loadgen.compare.metrics import NOTHING
from loadgen.compare.noise import Noise
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import common_warmup_s, read_run
from loadgen.compare.sides import Sides
from loadgen.errors import UsageError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs by their names on the page. `refusal` says why they cannot be compared; those that
    are `faulty` decide nothing."""

    base: str
    new: str
    comparison: Comparison | None
    refusal: str = ""
    faulty: tuple[str, ...] = ()


def pairs(
    paths: Sequence[Path], names: Sequence[str], vary: Collection[str], noise: Noise | None
) -> list[Pair]:
    """Every run but the first against the first. `noise` is used for runs of its machine."""
    if len(paths) < 2:
        return []
    warmup_s = common_warmup_s(paths)
    runs = [_read(path, name, warmup_s) for path, name in zip(paths, names, strict=True)]
    return [
        _pair((names[0], name), (runs[0], run), vary, noise)
        for name, run in zip(names[1:], runs[1:], strict=True)
    ]


def _read(path: Path, name: str, warmup_s: float) -> ComparedRun | str:
    try:
        return replace(read_run(path, warmup_s=warmup_s), name=name)
    except UsageError as error:
        return str(error)


def _pair(
    names: tuple[str, str],
    runs: tuple[ComparedRun | str, ComparedRun | str],
    vary: Collection[str],
    noise: Noise | None,
) -> Pair:
    base, new = runs
    if isinstance(base, str) or isinstance(new, str):
        return Pair(*names, None, base if isinstance(base, str) else str(new))
    faulty = tuple(run.name for run in (base, new) if run.faults)
    known = noise if noise and {base.machine, new.machine} == {noise.machine} else None
    try:
        found = compare(Sides((base,), (new,), known), vary=vary)
    except UsageError as error:
        return Pair(*names, None, str(error))
    return Pair(*names, found, faulty=faulty)


_OPEN = {
    "single runs": "no more than single runs may differ by",
    "no evidence": "no evidence of a difference",
    "too little data": "too few data for an interval",
}


def verdict(pair: Pair) -> Iterator[str]:
    """In words: better in what, worse in what, and what is not decided; the figures come first."""
    if pair.comparison is None:
        yield f"{pair.new} cannot be compared with {pair.base}: {pair.refusal}."
        return
    said = {
        word: listed([_with_change(row) for row in pair.comparison.rows if row.verdict == word])
        for word in ("better", "worse", *_OPEN)
    }
    decided = "; ".join(f"{word} in {said[word]}" for word in ("better", "worse") if said[word])
    unsure = [f"{said[word]}: {why}" for word, why in _OPEN.items() if said[word]]
    first, *others = [*filter(None, [decided]), *unsure] or ["no figure has an interval"]
    yield f"{pair.new} against {pair.base}: {first}."
    yield from (f"{each}." for each in others)
    if counted := wording.counts(pair.comparison.counts):
        yield f"{counted[0].upper()}{counted[1:]}."
    if pair.faulty:
        verb = "is" if len(pair.faulty) == 1 else "are"
        yield f"Do not decide by this: {listed(list(pair.faulty))} {verb} not valid."


_WORDS = {"values": ("shorter", "longer"), "rate": ("less", "more"), "share": ("less", "more")}
"""What a metric of each form is when it is lower, and when it is higher."""


def _with_change(row: Compared) -> str:
    """`ttft_ms.p50 (57.0 % shorter, lower in 3 of 3 runs, interval -86.0 % to +34.0 %)`."""
    within = wording.bounds(row)
    between = "" if within == NOTHING else f"interval {within}"
    told = filter(None, (_in_words(row), wording.agreement(row), between))
    return f"{row.statistic.name} ({', '.join(told)})"


def _in_words(row: Compared) -> str:
    """`57.0 % shorter (2.3 times as fast)`; a change too large to be said stays as it is."""
    change = wording.change(row)
    if change[:1] not in "+-" or change[1:2] in ("", "∞"):
        return change
    size, bracket, factor = change[1:].partition(" (")
    return f"{size} {_WORDS[row.statistic.metric.form][change[0] == '+']}{bracket}{factor}"


def pair_table(pair: Pair) -> Table | None:
    """The rows of `kvswarm compare`; None where there are none."""
    if pair.comparison is None:
        return None
    level = wording.confidence(pair.comparison.row_level)
    columns = ("", pair.base, pair.new, "change", f"{level} interval", "verdict")
    rows = tuple(TableRow(row.statistic.name, wording.cells(row)) for row in pair.comparison.rows)
    note = "".join(f"Note: {remark}. " for remark in pair.comparison.remarks)
    return Table(f"{pair.new} against {pair.base}", columns, rows, note=note)
