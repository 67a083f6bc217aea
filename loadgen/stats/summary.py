"""A run in figures: `summary.json` and `summary.csv`."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadgen.scratch import write_whole
from loadgen.stats import metrics
from loadgen.stats.server_counters import NO_FIGURES
from loadgen.stats.sketch import Sketch, least_values
from loadgen.stats.tally import Tally

STATISTICS = ("count", "mean", "stddev", "min", "p50", "p90", "p95", "p99", "max")
FIELDS: Mapping[str, str] = {
    "duration_s": "from the first send to the last end, the drain included",
    "requests": "all of them: the rows of `requests.csv`, but for those of the warm-up",
    "failed": "those that ended neither `ok` nor `cancelled`",
    "outcomes": "outcome to count; `ok` is always there",
    "peak_concurrency": "the most requests at once; null without a run directory",
    "late": "timeouts that were cut off when they had waited too long",
    "resends": "of `requests.csv`, added up",
    "retries": "likewise",
    "odd_counts": "`ok` replies that told more cached tokens than their prompt has: left out",
    "batches": "batch outcome to count; empty where none were sent",
    "metrics": "statistics of each [metric](metrics.md) of values",
    "server": "the engine's view, without a given `--warmup`, to the end of the drain; its other"
    " clients are in it too",
    "server_note": "why figures of the engine are missing, begin late, end early or are of several"
    " models",
    "replicas": "of several engines behind a router: `engines`, by name, with their `requests`,"
    " `share`, `contexts` and counters; `context_affinity`: the share of requests that went to the"
    " engine which got most of their context",
    "engine_deaths": "engines of a fleet that died: `engine`, `at_s`, `reason`, how many requests"
    " `failed` because of it, and `served_again_s`, from the death to the end of the first `ok`"
    " request after the last of these (null: none came); empty with none",
    "diversity": "of the contexts that were really sent",
    "gate": "`met`, `verdict`, `faults` for which the run decides nothing, and `limits` with their"
    " `value`",
    "client_saturated": "whether the client was too late for the figures to hold",
    "client_saturated_reason": "a sentence saying why",
    "token_times": "their `clock`, `kernel` or `event loop`, and shares of `client_metrics.csv`",
    "stats_reset_s": "when the statistics were last reset",
    "lost_workers": "workers that were lost during the run",
    "lost_share": "the part of the load, 0 to 1, that was theirs",
    "warmup": "what `--warmup` left out: `seconds` (0: none was found), `requests` and of these"
    " `failed`; `given`: false where the seconds were found; null without the option",
    "steady_state": "`settled` (null: too few to tell); `from_s`, where the warm-up that was found"
    " ends, with `early` requests due before it; `shift`, how much higher they make the mean TTFT"
    " (0.1 is 10 %); and of the others `requests`, `requests_per_s`, `output_tokens_per_s` and"
    " `metrics`, in the largest runs of a sample. Null where the load was not meant to be steady",
}
"""What the fields of `summary.json` are that are no metrics."""
_QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


def summarize(
    tally: Tally,
    *,
    duration_s: float,
    diversity: Mapping[str, Any] | None,
    server: Mapping[str, Any] | None,
    client_saturated: bool,
    client_saturated_reason: str = "",
) -> dict[str, Any]:
    """The content of `summary.json`; None stands wherever there is no data.

    Rates, shares and `metrics` are those of the catalogue; rates are over `duration_s` (first send
    to last end). `requests` counts all, `failed` those that ended neither `ok` nor `cancelled`.
    `server` is what `server_figures` returned, None where nothing was scraped.
    """
    return {
        "duration_s": duration_s,
        "requests": tally.requests,
        "failed": tally.failed,
        "outcomes": tally.outcomes,
        "late": tally.late,
        "resends": tally.resends,
        "retries": tally.retries,
        "odd_counts": tally.odd_counts,
        "batches": tally.batch_outcomes,
        **{each.name: tally.figure(each.name, duration_s) for each in metrics.figures()},
        "metrics": {
            each.name: statistics_of(tally.sketches[each.name]) for each in metrics.summarized()
        },
        "server": dict(NO_FIGURES if server is None else server),
        "diversity": None if diversity is None else dict(diversity),
        "client_saturated": client_saturated,
        "client_saturated_reason": client_saturated_reason or None,
    }


def statistics_of(sketch: Sketch) -> dict[str, float | None]:
    """One metric's `STATISTICS`; all but `count` are None when it has no values."""
    quantiles = {name: sketch.quantile(q) for name, q in _QUANTILES.items()}
    return {
        "count": sketch.count,
        "mean": sketch.mean,
        "stddev": sketch.stddev,
        "min": sketch.min,
        **quantiles,
        "max": sketch.max,
    }


TAILS = "A p90 is of 10 values or more, a p95 of 20, a p99 of 100: fewer have none beyond it."


def known_statistics(found: Mapping[str, float | None]) -> dict[str, float | None]:
    """A metric's `STATISTICS` for people to read: a percentile that no value lies beyond is None
    (`TAILS`)."""
    count = found.get("count") or 0
    few = (name for name, q in _QUANTILES.items() if name in found and count < least_values(q))
    return {**found, **dict.fromkeys(few)}


def death_line(told: Mapping[str, Any]) -> str:
    """One of `engine_deaths` in words."""
    line = f"{told['engine']} {told['reason']} at {told['at_s']:.1f} s"
    failed, again_s = told["failed"], told["served_again_s"]
    if failed is None:
        return line
    served = "none was ok after it" if again_s is None else f"served again after {again_s:.1f} s"
    return f"{line}: {failed} requests failed because of it, {served}"


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json` and `summary.csv`, each replaced in one step.

    The CSV has the columns `metric`, the nine `STATISTICS` and `value`. A row of `metrics` fills
    the statistics; every other figure is a row with only `value`, nested ones under dotted names
    (`outcomes.ok`, `server.hit_rate`). Lists stay in the JSON alone; None is an empty cell.
    """
    text = orjson.dumps(dict(summary), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_whole(directory / "summary.json", text)
    write_whole(directory / "summary.csv", _csv(orjson.loads(text)).encode())


def _csv(summary: dict[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ("metric", *STATISTICS, "value"), lineterminator="\n")
    writer.writeheader()
    for name, statistics in summary["metrics"].items():
        writer.writerow({"metric": name, **statistics})
    rest = {name: value for name, value in summary.items() if name != "metrics"}
    for name, value in _flat(rest):
        writer.writerow({"metric": name, "value": value})
    return out.getvalue()


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield prefix + name, str(value).lower()
        elif not isinstance(value, list):
            yield prefix + name, value
