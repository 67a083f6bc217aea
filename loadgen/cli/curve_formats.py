"""A cache curve as a table with words, as JSON and as CSV."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadgen.locality.curve import ENOUGH, CacheCurve
from loadgen.locality.kv_format import ToldFigure
from loadgen.locality.measured import MeasuredRun

FORMATS = ("table", "json", "csv")
COLUMNS = (
    *("kv_tokens", "blocks", "kv_mb", "hit_rate", "cached_tokens", "computed_tokens"),
    "tier_tokens",
)
MB = 1e6
WIDTH = 80


@dataclass(frozen=True, slots=True)
class Prediction:
    """A curve, how its cache is kept, by whose word, and runs it can be held against."""

    curve: CacheCurve
    block_size: ToldFigure
    bytes_per_token: ToldFigure
    measured: tuple[MeasuredRun, ...]

    def mb(self, tokens: int) -> float | None:
        """Millions of bytes of so many tokens."""
        each = self.bytes_per_token.value
        return None if each is None else tokens * each / MB

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Values of COLUMNS."""
        for point in self.curve.points:
            sizes = point.tokens, point.blocks, self.mb(point.tokens)
            tokens = point.cached_tokens, point.computed_tokens, point.tier_tokens
            yield *sizes, point.hit_rate, *tokens


def formatted(prediction: Prediction, form: str) -> str:
    """Text of the whole prediction."""
    return {"table": _table, "json": _json, "csv": _csv}[form](prediction)


def _csv(prediction: Prediction) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(prediction.rows())
    return text.getvalue()


def _json(prediction: Prediction) -> str:
    curve = prediction.curve
    content = {
        "source": curve.trace.source,
        "remarks": curve.trace.remarks,
        "requests": len(curve.trace.chains),
        "prompt_tokens": curve.trace.prompt_tokens,
        "block_size": curve.trace.block_size,
        "block_size_source": prediction.block_size.source,
        "in_flight": curve.trace.in_flight,
        "bytes_per_token": prediction.bytes_per_token.value,
        "bytes_per_token_source": prediction.bytes_per_token.source,
        "bound": curve.bound,
        "knee": asdict(curve.knee),
        "verdict": verdict(prediction),
        "points": [dict(zip(COLUMNS, row, strict=True)) for row in prediction.rows()],
        "measured": [
            {**asdict(each), "error_points": each.error_points} for each in prediction.measured
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _table(prediction: Prediction) -> str:
    console = Console(highlight=False, markup=False, width=WIDTH)
    with console.capture() as captured:
        for piece in (_head(prediction), "", _points(prediction), "", verdict(prediction)):
            console.print(piece)
        if prediction.measured:
            console.print("\n" + _errors(prediction.measured), soft_wrap=True)
    return captured.get()


def _head(prediction: Prediction) -> str:
    trace = prediction.curve.trace
    how = (
        "one after the other: the prediction is that of vLLM's own rules"
        if trace.is_sequential
        else f"{trace.in_flight} in flight: the prediction is an estimate"
    )
    told = prediction.bytes_per_token
    size = "unknown" if told.value is None else f"{told.value} bytes"
    lines = [
        f"{len(trace.chains)} requests, {trace.prompt_tokens} prompt tokens, {how}",
        f"made from {trace.source}",
        f"block size: {trace.block_size} tokens ({prediction.block_size.source})",
        f"a token: {size} ({told.source})",
        *(f"note: {remark}" for remark in trace.remarks),
    ]
    return "\n".join(lines)


def _points(prediction: Prediction) -> Table:
    table = Table(box=None, pad_edge=False)
    tier = ["from the tier"] if any(each.tier_tokens for each in prediction.curve.points) else []
    for title in ("KV tokens", "blocks", "MB", "hit rate", "computed tokens", *tier, ""):
        table.add_column(title, justify="right")
    knee = prediction.curve.knee
    for tokens, blocks, mb, hit_rate, _, *counts in prediction.rows():
        mark = "enough" if tokens == knee.enough_tokens else ""
        size = "" if mb is None else f"{mb:.1f}"
        shown = map(str, counts[: 1 + len(tier)])
        table.add_row(f"{tokens}", f"{blocks}", size, f"{hit_rate:.1%}", *shown, mark)
    return table


def verdict(prediction: Prediction) -> str:
    """How much is enough, and why, in words."""
    curve, knee = prediction.curve, prediction.curve.knee
    if curve.bound == 0:
        return "No cache helps this workload, because no prompt begins with a block of another."
    enough = curve.at(knee.enough_tokens)
    of_cache = (enough.cached_tokens - enough.tier_tokens) / curve.prompt_tokens
    return (
        f"{_size(prediction, knee.enough_tokens)} are enough for this workload, because"
        f" {ENOUGH:.0%} of what is used again comes back before {knee.reuse_tokens} tokens of other"
        f" blocks: {of_cache:.1%} of prompt tokens then come from the cache, and no cache gives"
        f" more than {curve.bound:.1%}, which takes"
        f" {_size(prediction, knee.working_set_tokens)}. The longest request alone needs"
        f" {knee.least_tokens} tokens."
    )


def _size(prediction: Prediction, tokens: int) -> str:
    mb = prediction.mb(tokens)
    if mb is None:
        return f"{tokens} tokens"
    return (
        f"{tokens} tokens ({mb / 1000:.2f} GB)" if mb >= 1000 else f"{tokens} tokens ({mb:.1f} MB)"
    )


def _errors(measured: Sequence[MeasuredRun]) -> str:
    """Runs stand last, since their names may be long and are not to be broken."""
    head = "KV tokens  requests  in flight  measured  predicted  error, points"
    # Beside the figures where there is room, else below them.
    gap = "  " if max(len(each.name) for each in measured) < WIDTH - len(head) else "\n  "
    lines = [f"{head}{gap}run"]
    for each in measured:
        counts = f"{each.tokens:9}  {each.requests:8}  {each.in_flight:9}"
        rates = f"{each.hit_rate:8.1%}  {each.predicted:9.1%}  {each.error_points:+13.2f}"
        lines.append(f"{counts}  {rates}{gap}{each.name}")
    return "\n".join(lines)
