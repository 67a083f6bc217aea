"""`kvswarm calibrate` and `kvswarm simulate`: a server's twin, and what it says of other sizes."""

import argparse
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.runs.directory import check_directory
from loadgen.sweep.table import WHOLE

if TYPE_CHECKING:
    from loadgen.twin.advise import Advice, SizeTried
    from loadgen.twin.model import TwinModel
    from loadgen.twin.predict import TwinPrediction

TWIN_JSON, MOST_REPLICAS = "twin.json", 64
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
    logging.getLogger("vllm").setLevel(logging.ERROR)  # speaks before it has read its own level
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
        from loadgen.locality.trace_sources import recorded_run
        from loadgen.twin.directory import write_simulated
        from loadgen.twin.load import recorded_load
        from loadgen.twin.model import TwinModel
        from loadgen.twin.predict import measured_figures, predict_load
        from loadgen.twin.shape_of import changed, shape_of_run

        _check_replicas(parsed.replicas, parsed.router)
        if parsed.out is not None:
            check_directory(parsed.out)
        model = TwinModel.read(parsed.twin)
        recorded = shape_of_run(parsed.run)
        shape = changed(recorded, parsed.kv_tokens, parsed.target)
        load = recorded_load(parsed.run, recorded.block_size)
        prediction = predict_load(model, load, shape, parsed.replicas, parsed.router)
        is_recorded = shape == recorded and parsed.replicas == 1
        measured = None if not is_recorded else measured_figures(load, _duration_s(parsed.run))
        if parsed.out is not None:
            command = ["kvswarm", "simulate", *arguments]
            run = recorded_run(parsed.run)
            write_simulated(parsed.out, run, shape, prediction.served, command)
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
    if parsed.replicas > 1:
        print("\n".join(_aligned(list(_replicas(prediction)))))
    return 0


def _check_replicas(replicas: int, router: str) -> None:
    from loadgen.twin.routing import ROUTERS

    if not 1 <= replicas <= MOST_REPLICAS:
        raise UsageError(f"--replicas {replicas} is out of range: give 1 to {MOST_REPLICAS}")
    if router and router not in ROUTERS:
        raise UsageError(f"--router {router} is not modelled: choose one of {', '.join(ROUTERS)}")
    if router and replicas == 1:
        raise UsageError("--router needs more than one engine: give --replicas 2")


def _replicas(prediction: "TwinPrediction") -> Iterator[Sequence[str]]:
    yield ("replica", "requests", "contexts", "prompt tokens computed")
    for number, each in enumerate(prediction.served.replicas, 1):
        contexts = {request.context for request in each.arrived}
        counts = (len(each.arrived), len(contexts), each.computed_tokens)
        yield (str(number), *(f"{count:,}" for count in counts))


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
    runs = list(advice.commands())
    print("\n".join(f"  {shlex.join(words)}" for _, words in runs) or "  nothing was found")
    if parsed.verify is not None:
        for tried, words in runs:
            _verify(advice, tried, words, parsed.verify)
    return 0


def _verify(advice: "Advice", tried: "SizeTried", words: Sequence[str], folder: Path) -> None:
    """Make one of these runs, and say how far its prediction was off. Raises UsageError."""
    from loadgen.twin.advise import ORDERS, value_of
    from loadgen.twin.load import recorded_load
    from loadgen.twin.shape_of import shape_of_run

    out = folder / f"{tried.kv_tokens}-{'context' if tried.by_context else 'first-come'}"
    check_directory(out)
    command = [sys.executable, "-m", "kvswarm", *words[1:], "--out", str(out)]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code not in WHOLE:
        raise UsageError(f"{shlex.join(words)} ended with exit code {code}: see {out}")
    load = recorded_load(out, shape_of_run(out).block_size)
    value = value_of(
        advice.limit,
        [each.ttft_s for each in load.measured.values()],
        [each.e2e_s for each in load.measured.values()],
    )
    kept = "keeps" if value <= advice.limit.bound else "misses"
    print(
        f"measured: {tried.kv_tokens:,} tokens, {ORDERS[tried.by_context]}: {value:,.0f} ms, which"
        f" {kept} {advice.limit.text}; the twin was {tried.value / value - 1:+.0%} off"
    )


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
    add("--verify", type=Path, metavar="DIR", help="make the runs that could overturn it, in DIR")
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
    add("--replicas", type=int, default=1, metavar="N", help="engines of this size (default: 1)")
    add(
        "--router",
        default="",
        metavar="POLICY",
        help="before them: round-robin (default), least-connections or context-hash",
    )
    add("--out", type=Path, metavar="DIR", help="also as a run directory, marked as simulated")
    add("--format", choices=("table", "json"), default="table")
    return parser
