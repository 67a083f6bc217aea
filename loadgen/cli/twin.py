"""`kvswarm calibrate` and `kvswarm simulate`: a server's twin, and what it says of other sizes."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs

if TYPE_CHECKING:
    from loadgen.twin.model import TwinModel
    from loadgen.twin.predict import TwinPrediction

TWIN_JSON = "twin.json"
FIGURES: Mapping[str, tuple[str, str]] = {
    "computed_prompt_tokens": ("prompt tokens computed", "{:,.0f}"),
    "ttft_mean_ms": ("TTFT mean", "{:,.0f} ms"),
    "ttft_p50_ms": ("TTFT p50", "{:,.0f} ms"),
    "ttft_p95_ms": ("TTFT p95", "{:,.0f} ms"),
    "e2e_mean_ms": ("E2E mean", "{:,.0f} ms"),
    "requests_per_s": ("requests/s", "{:.3g}"),
}
"""What is shown of a simulation, in this order."""
UNITS = {"s": (1.0, "s"), "ms": (1e3, "ms"), "us": (1e6, "µs"), "ns": (1e9, "ns")}


def calibrate_command(arguments: list[str]) -> int:
    """Fit the times of a server's steps to runs, and keep them. Raises UsageError."""
    parsed = _calibrate_parser().parse_args(arguments)
    with _vllm():
        from loadgen.twin.calibrate import calibrate, shown_times

        model = calibrate(parsed.runs)
    model.write(parsed.output)
    width = max(len(name) for name, *_ in shown_times(model))
    for name, value, (low, high) in shown_times(model):
        print(f"{name:{width}}  {_seconds(value):>10}  ({_seconds(low)} to {_seconds(high)})")
    print("\n".join(_words(model, parsed.output)))
    return 0


@contextmanager
def _vllm() -> Iterator[None]:
    """With vLLM's scheduler at hand, which has nothing to say here. Raises UsageError without."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with needs("compare,engine-cpu"):
        yield


def _words(model: "TwinModel", output: Path) -> Iterator[str]:
    runs = "1 run" if model.runs == 1 else f"{model.runs} runs"
    yield f"median error of a reply's time: {model.error_share:.1%}, over {runs}"
    if model.runs > 1:
        yield (
            f"whole runs differ from the twin by {model.speed_sd:.1%} (standard deviation):"
            " predictions have intervals that hold it"
        )
    else:
        yield "how much runs differ from each other one run does not tell: predictions are without"
        yield "intervals; give two or more"
    yield from (f"open: {each}" for each in model.open_questions)
    yield f"twin: {output}"


def _seconds(value: float) -> str:
    """In a unit that leaves one to three digits before the point."""
    for factor, unit in UNITS.values():
        if value * factor >= 1 or unit == "ns":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError("the last unit is taken for all that is smaller")


def simulate_command(arguments: list[str]) -> int:
    """Serve a recorded run's load on a twin, at another size or in another order. Raises
    UsageError."""
    parsed = _simulate_parser().parse_args(arguments)
    with _vllm():
        from loadgen.twin.load import recorded_load
        from loadgen.twin.model import TwinModel
        from loadgen.twin.predict import measured_figures, predict_load
        from loadgen.twin.shape_of import changed, shape_of_run

        model = TwinModel.read(parsed.twin)
        recorded = shape_of_run(parsed.run)
        shape = changed(recorded, parsed.kv_tokens, parsed.target)
        load = recorded_load(parsed.run, recorded.block_size)
        prediction = predict_load(model, load, shape)
        measured = None if shape != recorded else measured_figures(load, _duration_s(parsed.run))
    if parsed.format == "json":
        content = {
            "simulated": True,
            "shape": asdict(shape),
            "figures": dict(prediction.figures),
            "intervals": dict(prediction.intervals),
            "measured": measured,
        }
        print(json.dumps(content, indent=2))
        return 0
    tokens = shape.usable_blocks * shape.block_size
    order = "by context" if shape.plugin is not None else "first come, first served"
    print(
        f"simulated, {len(prediction.served.requests):,} requests of {parsed.run} on"
        f" {tokens:,} tokens of cache, {order} ({load.source})"
    )
    print("\n".join(_table(prediction, measured)))
    return 0


def advise_command(arguments: list[str]) -> int:
    """The smallest cache, in both orders, that keeps an objective. Raises UsageError."""
    parsed = _advise_parser().parse_args(arguments)
    with _vllm():
        from loadgen.twin.advise import ORDERS, advise, parse_objective
        from loadgen.twin.model import TwinModel

        limit = parse_objective(parsed.slo)
        advice = advise(TwinModel.read(parsed.twin), parsed.run, limit, _sizes(parsed.kv_tokens))
    print("\n".join(advice.sentences()))
    print()
    rows: list[Sequence[str]] = [("cache, tokens", "order", limit.statistic.name, "computed", "")]
    for each in advice.candidates:
        computed = each.prediction.figures["computed_prompt_tokens"]
        kept = "✓" if each.keeps(limit) else "✗"
        shown = (f"{each.kv_tokens:,}", ORDERS[each.by_context], f"{each.value:,.0f} ms")
        rows.append((*shown, f"{computed:,.0f}", kept))
    print("\n".join(_aligned(rows)))
    print("\nwhat could overturn it:")
    print("\n".join(f"  {command}" for command in advice.commands()) or "  nothing was found")
    return 0


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UsageError(f"--kv-tokens {text}: write whole numbers, as 5120,10240") from None


def _duration_s(run: Path) -> float:
    from loadgen.runs.recorded import RecordedRun

    first_s, last_s = RecordedRun(run).requests.sent.span_s
    return last_s - first_s


def _table(prediction: "TwinPrediction", measured: Mapping[str, float] | None) -> Iterator[str]:
    rows: list[Sequence[str]] = [("", "simulated", "90 % of runs", "measured")]
    for name, (title, form) in FIGURES.items():
        interval = prediction.intervals.get(name)
        within = ""
        if interval is not None and interval[1] < float("inf"):
            within = " to ".join(map(form.format, interval))
        told = "" if measured is None or name not in measured else form.format(measured[name])
        rows.append((title, form.format(prediction.figures[name]), within, told))
    yield from _aligned(rows if measured is not None else [row[:3] for row in rows])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _calibrate_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm calibrate",
        description="Find the times of an engine's steps from runs on it, without asking it: what"
        " `kvswarm simulate` needs. Needs vLLM's Python beside kvswarm, and no GPU.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run directories of the same server")
    add("-o", "--output", type=Path, default=Path(TWIN_JSON), metavar="FILE", help="the twin")
    return parser


def _advise_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm advise",
        description="The smallest KV cache that keeps an objective for the requests of a run, first"
        " come and by context, by simulation; and the runs that could overturn it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run directory whose requests are sent")
    add("--slo", required=True, metavar="LIMIT", help='as "ttft_ms.p95<=500"')
    add("--twin", type=Path, default=Path(TWIN_JSON), help="the server, by `kvswarm calibrate`")
    add("--kv-tokens", default="", metavar="N,N…", help="sizes to try (default: up to all reuse)")
    return parser


def _simulate_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm simulate",
        description="What a run would have been with another cache or order, by vLLM's own"
        " scheduler on a counted clock.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run directory whose requests are sent")
    add("--twin", type=Path, default=Path(TWIN_JSON), help="the server, by `kvswarm calibrate`")
    add("--kv-tokens", type=int, help="tokens of the engine's KV cache (default: as recorded)")
    add("--target", help="vllm or vllm-context (default: as recorded)")
    add("--format", choices=("table", "json"), default="table")
    return parser
