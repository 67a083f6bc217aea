"""`kvswarm calibrate`: a server's twin, made of its runs; and what the commands on twins share."""

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.curve import check_picture, save_picture
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.terminal import tell
from loadgen.runs.directory import require_writable
from loadgen.targets.hardware import detect_platform

if TYPE_CHECKING:
    from loadgen.twin.model import TwinModel

PICTURE = "--picture"
TWIN_JSON = "twin.json"
UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns"))


def calibrate_command(arguments: list[str]) -> int:
    """Fit the times of a server's steps to runs, and keep them. Raises UsageError."""
    parsed = _calibrate_parser().parse_args(arguments)
    if not parsed.output.name or parsed.output.is_dir():
        raise UsageError(f"-o {parsed.output} is a directory: name a file, such as {TWIN_JSON}")
    require_writable(parsed.output.parent, "-o")
    if parsed.picture is not None:
        check_picture(parsed.picture, PICTURE)
    with with_vllm():
        from loadgen.locality.trace_sources import recorded_run
        from loadgen.twin.calibrate import calibrate, residuals_of, shown_times
        from loadgen.twin.shape_of import CalibratedEngine

        model = calibrate(parsed.runs)
        engines = map(CalibratedEngine.of_run, parsed.runs)
        commands = [recorded_run(run).description.get("command_line") or [] for run in parsed.runs]
        residuals = [] if parsed.picture is None else residuals_of(model, parsed.runs)
    model.write(parsed.output)
    if parsed.picture is not None:
        with needs("report", "drawing"):
            from dashboards.figures.residuals import draw_residuals
        save_picture(draw_residuals(residuals), parsed.picture, PICTURE)
    width = max(len(name) for name, *_ in shown_times(model))
    for name, value, (low, high) in shown_times(model):
        tell(f"{name:{width}}  {_seconds(value):>10}  ({_seconds(low)} to {_seconds(high)})")
    assumed = dict.fromkeys(line for engine in engines for line in engine.assumed)
    is_calibration = any("calibrate" in command[:3] for command in commands)
    tell("\n".join([*assumed, *_words(model, parsed.output, is_calibration)]))
    return 0


@contextmanager
def with_vllm() -> Iterator[None]:
    """With vLLM's scheduler at hand, which has nothing to say here. Raises UsageError without."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("vllm").setLevel(logging.ERROR)  # speaks before it has read its own level
    with needs("compare"):
        import scipy  # noqa: F401
    with needs(f"engine-{detect_platform()}"):
        yield


def _words(model: "TwinModel", output: Path, is_calibration: bool) -> Iterator[str]:
    runs = "1 run" if model.runs == 1 else f"{model.runs} runs"
    yield f"median error of a reply's time: {model.error_share:.1%}, over {runs}"
    if model.runs > 1:
        yield (
            f"whole runs differ from the twin by {model.speed_sd:.1%} (standard deviation):"
            " predictions have intervals that hold it"
        )
    else:
        yield (
            f"in {model.windows} windows of its time its speed differs by {model.speed_sd:.1%}"
            " (standard deviation): predictions have intervals that hold it, but not how much other"
            " runs differ; give two or more"
        )
    yield from model.otherwise
    yield from (f"open: {each}" for each in model.open_questions)
    if model.open_questions and not is_calibration:
        yield "`kvswarm run calibrate` sends requests that tell most of it, in two minutes"
    yield f"twin: {output}"


def _seconds(value: float) -> str:
    """In a unit that leaves one to three digits before the point."""
    for factor, unit in UNITS:
        if value * factor >= 1 or unit == "ns":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError("the last unit is taken for all that is smaller")


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
    add(PICTURE, type=Path, metavar="FILE", help="draw how far replies are off: .svg or .png")
    return parser
