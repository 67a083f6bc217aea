"""The smallest cache, in which order, that keeps an objective: by simulation of every candidate."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadgen.compare.gate import Limit
from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.trace_sources import recorded_run, trace_of_run
from loadgen.runs.columns import Floats
from loadgen.saturate.objective import slo_limit
from loadgen.twin.engine import EngineShape
from loadgen.twin.load import RecordedLoad, recorded_load
from loadgen.twin.model import TwinModel
from loadgen.twin.predict import TwinPrediction, predict_load
from loadgen.twin.shape_of import shape_of_run

SIZES = 6
ORDERS = {False: "first come, first served", True: "by context"}
LIMITED = ("ttft_ms", "e2e_ms")
REPLACED = ("--target", "--kv-tokens", "--out", "--host", "-H")


@dataclass(frozen=True, slots=True)
class SizeTried:
    """One size and order with what it would give; `value` is of the limit's statistic."""

    kv_tokens: int
    by_context: bool
    prediction: TwinPrediction
    value: float
    interval: tuple[float, float]

    def keeps(self, limit: Limit) -> bool:
        """Whether the run that is expected does."""
        return self.value <= limit.bound

    def surely_keeps(self, limit: Limit) -> bool:
        """Whether nine of ten such runs do."""
        return self.interval[1] <= limit.bound

    def is_open(self, limit: Limit) -> bool:
        """Whether runs here differ by more than decides it."""
        return self.interval[0] <= limit.bound < self.interval[1]


@dataclass(frozen=True, slots=True)
class Advice:
    """All candidates, small first, for one limit on the requests of one run."""

    run: Path
    limit: Limit
    candidates: tuple[SizeTried, ...]

    def smallest(self, by_context: bool) -> SizeTried | None:
        """The smallest that keeps the limit in this order, and of which no larger one misses it."""
        found = None
        for each in sorted(self._of(by_context), key=lambda each: -each.kv_tokens):
            if not each.keeps(self.limit):
                break
            found = each
        return found

    def sentences(self) -> Iterator[str]:
        """The answer, what the order adds, and what could overturn it."""
        best = {order: self.smallest(order) for order in ORDERS}
        plain, ordered = best[False], best[True]
        if plain is None and ordered is None:
            nearest = min(self.candidates, key=lambda each: each.value)
            yield (
                f"No size that was tried keeps {self.limit.text}: the nearest is"
                f" {self._named(nearest)}. Fewer users, shorter prompts or a faster engine would."
            )
            return
        yield " ".join(self._told(order, each) for order, each in best.items())
        yield self._order(plain, ordered)
        doubtful = [each for each in best.values() if each is not None and each.is_open(self.limit)]
        for each in doubtful:
            yield (
                f"{self._named(each)} is within what runs here differ by: measure it before you"
                " rely on it."
            )

    def commands(self) -> Iterator[tuple[SizeTried, list[str]]]:
        """The runs that could overturn the answer, behind what each would show."""
        recorded = recorded_run(self.run).description.get("command_line") or []
        for order in ORDERS:
            if (found := self.smallest(order)) is not None:
                yield found, _command(recorded, found)

    def _of(self, by_context: bool) -> list[SizeTried]:
        return [each for each in self.candidates if each.by_context == by_context]

    def _told(self, order: bool, found: SizeTried | None) -> str:
        said = ORDERS[order][0].upper() + ORDERS[order][1:]
        if found is None:
            most = max(each.kv_tokens for each in self._of(order))
            return f"{said}, no cache up to {most:,} tokens keeps {self.limit.text}."
        is_least = found.kv_tokens == min(each.kv_tokens for each in self._of(order))
        least = " (the least that was tried)" if is_least else ""
        return (
            f"{said}, {found.kv_tokens:,} tokens of cache{least} keep {self.limit.text}:"
            f" {found.value:,.0f} ms{_within(found.interval)}."
        )

    def _order(self, plain: SizeTried | None, ordered: SizeTried | None) -> str:
        if plain is None or ordered is None:
            return "The order decides." if ordered is not None else "The order does not help."
        if ordered.kv_tokens < plain.kv_tokens:
            share = 1 - ordered.kv_tokens / plain.kv_tokens
            return f"An order by context saves {share:.0%} of the cache."
        return "An order by context saves no cache here."

    def _named(self, each: SizeTried) -> str:
        return (
            f"{each.kv_tokens:,} tokens, {ORDERS[each.by_context]} ({each.value:,.0f}"
            f" ms{_within(each.interval)})"
        )


def _command(recorded: Sequence[str], tried: SizeTried) -> list[str]:
    """The recorded command with another engine, and without what belongs to that run alone."""
    words = ["kvswarm", "run"]
    rest = iter(recorded[2:] if recorded[:2] == words else ())
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in REPLACED:
            words.append(word)
        elif not equals:
            next(rest, None)
    target = "vllm-context" if tried.by_context else "vllm"
    return [*words, "--target", target, "--kv-tokens", str(tried.kv_tokens)]


def _within(interval: tuple[float, float]) -> str:
    low, high = interval
    return "" if math.isinf(high) else f", {low:,.0f} to {high:,.0f} ms in nine of ten runs"


def advise(model: TwinModel, run: Path, limit: Limit, sizes: Sequence[int] = ()) -> Advice:
    """Serve the run's requests on every candidate. Raises UsageError."""
    shape = shape_of_run(run)
    load = recorded_load(run, shape.block_size)
    tried = sorted({size // shape.block_size for size in sizes}) or _grid(run)
    found = [
        _candidate(model, load, replace(shape, usable_blocks=blocks), order, limit)
        for blocks in tried
        for order in ORDERS
    ]
    return Advice(run, limit, tuple(found))


def parse_objective(text: str) -> Limit:
    """A limit on a time, as `ttft_ms.p95<=500`. Raises UsageError."""
    limit = slo_limit(text)
    name = limit.statistic.metric.name
    if name not in LIMITED or limit.kind != "value" or not limit.at_most:
        raise UsageError(
            f"--slo {text}: the twin tells {' and '.join(LIMITED)}: write ttft_ms.p95<=500"
        )
    return limit


def value_of(limit: Limit, ttft_s: Floats, e2e_s: Floats) -> float:
    """What is limited, in ms, of replies that took so long."""
    values = 1000 * (ttft_s if limit.statistic.metric.name == "ttft_ms" else e2e_s)
    quantile = limit.statistic.quantile
    return float(values.mean() if quantile is None else np.quantile(values, quantile))


def _grid(run: Path) -> list[int]:
    """Blocks from the least that serve every request to all that is used again, evenly spread on a
    scale of factors, with the knee."""
    trace = trace_of_run(run)
    knee, size = predict(trace).knee, trace.block_size
    least, most = knee.least_tokens // size, max(knee.working_set_tokens, knee.least_tokens) // size
    even = np.geomspace(least, max(most, least + 1), SIZES)
    return sorted({round(blocks) for blocks in even} | {knee.enough_tokens // size})


def _candidate(
    model: TwinModel, load: RecordedLoad, shape: EngineShape, by_context: bool, limit: Limit
) -> SizeTried:
    plugin = (shape.plugin or ()) if by_context else None
    prediction = predict_load(model, load, replace(shape, plugin=plugin))
    value = value_of(limit, prediction.ttft_s, prediction.e2e_s)
    tokens = shape.usable_blocks * shape.block_size
    return SizeTried(tokens, by_context, prediction, value, model.interval(value))
