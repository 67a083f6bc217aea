"""`kvswarm curve`: hit rate against cache size, predicted from the order of requests alone."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.curve_formats import FORMATS, Prediction, formatted
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.target_run import model_named
from loadgen.locality.break_even import check_bytes_per_token
from loadgen.locality.curve import predict
from loadgen.locality.kv_format import (
    PlannedEngine,
    ToldFigure,
    model_path,
    run_block_size,
    run_told_bytes,
)
from loadgen.locality.measured import measured_run
from loadgen.locality.trace import TokenIds, Trace
from loadgen.locality.trace_sources import trace_of_plan, trace_of_run
from loadgen.scratch import expanded
from loadgen.swarm.options.flags import add_options
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.targets.demo_model import default_model_dir, is_complete
from loadgen.workload.corpus import load_corpus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANNED_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        *("contexts", "zipf", "stickiness", "repeat", "context-tokens", "output-tokens", "seed"),
        *("system-tokens", "corpus", "questions", "tokenizer", "batch-size", "order"),
    )
)
"""Those of `kvswarm run` that say which prompts come in which order."""
PLANS = ("unordered", "batched")
SUFFIXES = (".svg", ".png")


def curve_command(arguments: list[str]) -> int:
    """Print the curve and what it means, and draw it where told to. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    _check(parsed)
    parsed.model = model_named(parsed.model)
    sizes = _sizes(parsed.kv_tokens)
    measured = tuple(measured_run(path, parsed.tokenizer or None) for path in parsed.measured)
    block_size, bytes_per_token = _cache_format(parsed)
    assert block_size.value is not None
    curve = predict(_trace(parsed, block_size.value), sizes, tier_tokens=parsed.tier_tokens)
    prediction = Prediction(curve, block_size, bytes_per_token, measured)
    print(formatted(prediction, parsed.format), end="")
    if parsed.out is not None:
        with needs("report", "drawing"):
            from dashboards.figures.cache_curve import draw
        points = [(each.tokens, each.hit_rate, each.name) for each in measured]
        save_picture(draw(curve, points, bytes_per_token.value), parsed.out)
    return 0


def _check(parsed: argparse.Namespace) -> None:
    if (parsed.run is None) == (parsed.plan is None):
        raise UsageError(
            "give either the directory of a RUN or --plan NAME: see `kvswarm curve -h`"
        )
    if parsed.out is not None:
        check_picture(parsed.out)
    check_bytes_per_token(parsed.bytes_per_token)


def check_picture(path: Path, flag: str = "-o") -> None:
    """Raise UsageError for a file that no picture can be saved in."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{flag} {path} is no picture: end its name in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: {path.parent} is no directory: make it or name another")
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a directory: name a file, such as {path / 'curve.svg'}")


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--kv-tokens {text!r} is no list of sizes: write 4096,8192") from None
    if any(size < 1 for size in sizes):
        raise UsageError(f"--kv-tokens {min(sizes)}: a cache holds 1 token or more")
    return sizes


def _trace(parsed: argparse.Namespace, block_size: int) -> Trace:
    if parsed.run is not None:
        return trace_of_run(parsed.run, parsed.tokenizer or None, block_size, parsed.engine)
    options = SwarmOptions.read(vars(parsed))
    if parsed.plan not in PLANS:
        raise UsageError(
            f"--plan {parsed.plan!r} is not known before it is sent: give {' or '.join(PLANS)},"
            " or the RUN directory of what was sent"
        )
    return trace_of_plan(
        corpus=load_corpus(options.corpus, options.questions),
        settings=options.workload,
        tokens=TokenIds.from_path_or_name(_tokenizer(options.tokenizer or parsed.model)),
        requests=parsed.requests,
        block_size=block_size,
        users=parsed.users,
        batching=options.batching if parsed.plan == "batched" else None,
    )


def _tokenizer(given: str | None) -> str:
    if given is not None:
        return given
    if is_complete(default_model_dir("tiny")):
        return str(default_model_dir("tiny"))
    raise UsageError(
        "no tokenizer is known: give --tokenizer PATH|NAME, or make the demo model first"
        f" (`kvswarm model build {default_model_dir('tiny')}`)"
    )


def _cache_format(parsed: argparse.Namespace) -> tuple[ToldFigure, ToldFigure]:
    """Tokens of a block and bytes of a token: as given, as of the run, as of an engine of ours."""
    if parsed.run is None:
        block_size, bytes_per_token = _planned_format(parsed)
    else:
        block_size = run_block_size(parsed.run)
        bytes_per_token = run_told_bytes(
            parsed.run, None if parsed.model is None else model_path(parsed.model)
        )
    if parsed.block_size is not None:
        block_size = ToldFigure(parsed.block_size, "--block-size")
    if parsed.bytes_per_token is not None:
        bytes_per_token = ToldFigure(parsed.bytes_per_token, "--bytes-per-token")
    return block_size, bytes_per_token


def _planned_format(parsed: argparse.Namespace) -> tuple[ToldFigure, ToldFigure]:
    if parsed.model is not None and parsed.bytes_per_token is None:
        model = model_path(parsed.model)
    else:
        model = expanded(_tokenizer(parsed.tokenizer or None))
    engine = PlannedEngine.of_this_machine(model)
    return engine.told_block_size(), engine.told_bytes(model)


def save_picture(figure: "Figure", path: Path, flag: str = "-o") -> None:
    """As its name ends. Raises UsageError."""
    from dashboards.figures.style import save_svg

    try:
        if path.suffix == ".svg":
            save_svg(figure, path)
        else:
            figure.savefig(path, dpi=150, facecolor="white")
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be written ({error.strerror})") from None


class _Options:
    """Takes the options of a run that a plan needs, and leaves the others out."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._group = parser.add_argument_group("the workload of --plan, as for `kvswarm run`")

    def add_argument(self, flag: str, **settings: Any) -> None:
        if flag in PLANNED_OPTIONS:
            for name in ("env_var", "include_in_web_ui"):
                settings.pop(name, None)
            self._group.add_argument(flag, **settings)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm curve",
        usage="kvswarm curve RUN | --plan NAME [workload options] [options]",
        description="Predicts the hit rate of the engine's prefix cache at every size. No engine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", nargs="?", type=Path, metavar="RUN", help="the directory of a finished run")
    add("--engine", default="", help="RUN of several engines: which one")
    add("--plan", metavar="NAME", help="unordered or batched: a workload that nobody has sent yet")
    add("--requests", type=int, default=1000, help="plan: how many it sends (default: 1000)")
    add("-u", "--users", type=int, default=1, help="plan: users, each with one request or batch")
    add("--kv-tokens", default="", metavar="N,N…", help="sizes (default: up to the working set)")
    add(
        "--tier-tokens",
        type=int,
        metavar="N",
        help="vLLM's own host memory behind it; for one request after the other",
    )
    add(
        "--model",
        help="its folder, config.json or name, for tokens and bytes (default: the run's, else the"
        " demo model)",
    )
    add("--block-size", type=int, help="tokens of a KV block (default: the engine's)")
    add("--bytes-per-token", type=int, help="of the KV cache (default: by model and engine)")
    add("--measured", nargs="+", type=Path, default=[], metavar="RUN", help="runs to compare with")
    add("--format", choices=FORMATS, default="table", help="default: table")
    add("-o", "--out", type=Path, metavar="FILE", help="draw the curve: .svg or .png")
    add_options(_Options(parser))
    return parser
