"""`kvswarm advise`: the cache, order, rate and tier that keep an objective, by a twin."""

import argparse
import asyncio
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loadgen.cli.curve import check_picture, save_picture
from loadgen.cli.simulate import planned_simulation, run_words
from loadgen.cli.twin import TWIN_JSON, with_vllm
from loadgen.errors import TargetError, UsageError
from loadgen.launch.arguments import CommandParser, is_given, needs, run_again
from loadgen.launch.supervised import worst
from loadgen.launch.swarm_process import command_run
from loadgen.launch.target_run import model_named
from loadgen.launch.terminal import command_line, interruptible, say, tell
from loadgen.locality.kv_format import model_path, weights_bytes
from loadgen.locality.measured import argv_bytes_per_token, kv_form
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.directory import RUN_JSON, check_directory
from loadgen.runs.recorded import argument
from loadgen.sweep.table import WHOLE
from loadgen.targets.plan import BYTES_PER_GB
from loadgen.targets.settings import model_config
from rag_store.cli.output import aligned

if TYPE_CHECKING:
    from loadgen.twin.advice import Advice, SizeTried
    from loadgen.twin.advise import AdviceLoad, AdviceOptions
    from loadgen.twin.model import TwinModel
    from loadgen.twin.shape_of import CalibratedEngine

TARGETS = {False: "vllm", True: "vllm-context"}
"""By whether the order is by context."""
TIER_TARGET = "vllm-offload"
OF_A_TARGET = (
    *("--kv-cache-dtype", "--quantization", "--attention-backend", "--tensor-parallel-size"),
    *("--max-num-seqs", "--max-num-batched-tokens"),
)
"""Flags with which another target than these may start an engine."""
MOST_GPU_GB = 1e6
GPU_SHARE = 0.92
"""Of a GPU's memory, that vLLM takes unless told otherwise."""


def advise_command(arguments: list[str]) -> int:
    """Sizes, orders, rates and tiers for an objective, by simulation. Raises UsageError."""
    words = run_words(arguments, advise_parser())
    parsed, _ = (
        (_recorded_parser().parse_args(arguments), None)
        if words is None
        else advise_parser().parse_known_args(arguments)
    )
    if parsed.output is not None:
        check_picture(parsed.output)
    if parsed.verify is not None and any(parsed.verify.glob(f"*/{RUN_JSON}")):
        raise UsageError(f"--verify {parsed.verify} holds runs already: name another folder")
    with with_vllm():
        from loadgen.twin.advise import advise, parse_objective
        from loadgen.twin.model import TwinModel
        from loadgen.twin.shape_of import unlike_servers

        limit = parse_objective(parsed.slo)
        model = TwinModel.read(parsed.twin)
        about = _about(model, parsed, words)
        if parsed.verify is not None and run_again(about.command, TARGETS[False], 0) is None:
            raise UsageError(
                f"--verify: {parsed.run} was not made by `kvswarm run`: give FILE and the options"
                " of such a run in its place"
            )
        advice = advise(model, about, limit, _options(parsed, about.engine))
    outside = advice.candidates[0].prediction.outside
    machine = None if words else recorded_run(parsed.run).description.get("machine")
    assumed = [*about.remarks, *about.engine.assumed]
    assumed += unlike_servers(model, about.engine.argv, machine)
    assumed += _other_model(parsed.model_dir, about.engine)
    assumed += _other_machine(parsed, about.engine)
    tell("\n".join([*advice.sentences(), *outside, *assumed, ""]))
    tell("\n".join([*aligned(_rows(advice)), "", "what could overturn it:"]))
    model_words = [] if words is None else list(_model_words(about.engine.argv, about.command))
    runs = overturning(advice, [*about.command, *model_words], about.engine.argv)
    if runs is None:
        tell(f"  such runs of {parsed.run}, which `kvswarm run` has not made")
    else:
        tell("\n".join(command_line(each) for _, each in runs) or "  nothing was found")
    if parsed.output is not None:
        with needs("report", "drawing"):
            from dashboards.figures.frontier import draw_frontier
        save_picture(draw_frontier(advice), parsed.output)
    return 0 if parsed.verify is None else _verify_all(advice, runs or [], parsed.verify)


def overturning(
    advice: "Advice", recorded: Sequence[str], engine_argv: Sequence[str] = ()
) -> "list[tuple[SizeTried, list[str]]] | None":
    """The runs that could overturn the answer, behind what each would show, on engines with the
    flags of `engine_argv`; None where the command that sent the load is none of `kvswarm run`.
    Raises UsageError."""
    found = []
    for tried in advice.answers:
        target = TIER_TARGET if tried.tier_tokens else TARGETS[tried.by_context]
        words = run_again(recorded, target, tried.kv_tokens)
        if words is None:
            return None
        if tried.tier_tokens and advice.tier is not None:
            size_gb = tried.tier_tokens * advice.tier.bytes_per_token / BYTES_PER_GB
            words += ["--l1-gb", f"{math.ceil(1000 * size_gb) / 1000:g}"]
        found.append((tried, [*words, *_engine_words(engine_argv, words)]))
    return found


def _engine_words(argv: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """Options that give an engine the flags of this one which `words` leave out."""
    for flag in OF_A_TARGET:
        value = argument(argv, flag)
        if value is not None and not any(flag in word.replace("_", "-") for word in words):
            yield f"--engine-arg={flag}={value}"


def _model_words(argv: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """The option that names the model of the twin's engine, where nobody named one."""
    model = argument(argv, "--model")
    if model is not None and not is_given(words, "--model", "--size"):
        yield f"--model={model}"


def _about(
    model: "TwinModel", parsed: argparse.Namespace, words: Sequence[str] | None
) -> "AdviceLoad":
    from loadgen.twin.advise import AdviceLoad
    from loadgen.twin.shape_of import CalibratedEngine

    if words is None:
        return AdviceLoad.of_run(parsed.run)
    engine, most = CalibratedEngine.of_twin(model.engine), max(_sizes(parsed.kv_tokens), default=0)
    if most > engine.shape.usable_blocks * engine.shape.block_size:
        words = [*words, f"--kv-tokens={most}"]  # so that what fits the largest cache is planned
    simulation = planned_simulation(model, words, ())
    command = simulation.run.description["command_line"]
    engine = replace(engine, shape=simulation.shape)
    return AdviceLoad(
        simulation.load, engine, command, int(simulation.run.description["seed"] or 0)
    )


def _options(parsed: argparse.Namespace, engine: "CalibratedEngine") -> "AdviceOptions":
    from loadgen.twin.advise import AdviceOptions

    if parsed.price_per_gpu_hour is not None and not 0 < parsed.price_per_gpu_hour < math.inf:
        raise UsageError(f"--price-per-gpu-hour {parsed.price_per_gpu_hour:g}: give more than 0")
    if parsed.price_per_gpu_hour is not None and parsed.no_rates:
        raise UsageError("--price-per-gpu-hour needs the highest rates: leave out --no-rates")
    most = each = None
    if parsed.model_dir is not None:
        path = model_path(str(model_named(parsed.model_dir)))
        each = argv_bytes_per_token(engine.argv, path)
        if each is None:
            raise UsageError(f"--model {path}: the bytes of a token of KV are not told by it")
        if parsed.gpu_gb is not None:
            most = largest_cache(parsed.gpu_gb, path, each, _gpus(engine), _gpu_share(engine))
    elif parsed.gpu_gb is not None:
        raise UsageError("--gpu-gb needs the --model that lies beside the cache")
    return AdviceOptions(
        sizes=tuple(_sizes(parsed.kv_tokens)),
        most_tokens=most,
        with_rates=not parsed.no_rates,
        bytes_per_token=each,
        price=parsed.price_per_gpu_hour and parsed.price_per_gpu_hour * _gpus(engine),
    )


def _other_model(named: str | None, engine: "CalibratedEngine") -> list[str]:
    """One line where bytes are those of another model than the times; else none."""
    served = argument(engine.argv, "--model")
    if named is None or served is None or str(model_path(str(model_named(named)))) == served:
        return []
    return [f"bytes of a token are those of --model {named}, times those of {served}"]


def _other_machine(parsed: argparse.Namespace, engine: "CalibratedEngine") -> list[str]:
    """One line where what is asked of a GPU is answered by the times of a CPU; else none."""
    asked = {"--gpu-gb": parsed.gpu_gb, "--price-per-gpu-hour": parsed.price_per_gpu_hour}
    flags = [flag for flag, value in asked.items() if value is not None]
    if not flags or not engine.is_on_cpu:
        return []
    whose = "times, rates and prices are not a GPU's: calibrate on one"
    return [f"{' and '.join(flags)} with the twin of an engine on a CPU: {whose}"]


def _gpus(engine: "CalibratedEngine") -> int:
    """How many the engine is spread over."""
    found = argument(engine.argv, "--tensor-parallel-size") or "1"
    return int(found) if found.isdecimal() else 1


def _gpu_share(engine: "CalibratedEngine") -> float:
    """Of a GPU's memory, that the engine takes."""
    told = argument(engine.argv, "--gpu-memory-utilization")
    try:
        share = float(told or GPU_SHARE)
    except ValueError:
        return GPU_SHARE
    return share if 0 < share <= 1 else GPU_SHARE


def largest_cache(
    gpu_gb: float, model: Path, bytes_per_token: int, gpus: int = 1, share: float = GPU_SHARE
) -> int:
    """Tokens of KV that fit on so many GPUs, each with a KV head at least, beside the model's
    weights, of the share that vLLM takes. Raises UsageError where none do."""
    if not 0 < gpu_gb <= MOST_GPU_GB:
        raise UsageError(f"--gpu-gb {gpu_gb:g}: give more than 0, and {MOST_GPU_GB:g} at most")
    weights = weights_bytes(model)
    if weights is None:
        raise UsageError(f"--model {model} has neither weights nor a config that tells their size")
    left = share * gpus * gpu_gb * BYTES_PER_GB - weights
    bytes_per_token *= max(1, -(-gpus // kv_form(model_config(model))[0]))
    if left < bytes_per_token:
        raise UsageError(
            f"--gpu-gb {gpu_gb:g} does not hold the weights of --model {model}"
            f" ({weights / BYTES_PER_GB:.1f} GiB): give a larger one"
        )
    return int(left // bytes_per_token)


def _rows(advice: "Advice") -> Iterator[Sequence[str]]:
    from loadgen.twin.advice import ORDERS, in_ms

    has_cost = advice.price is not None
    head = ("cache, tokens", "order", advice.limit.statistic.name, "", "computed", "requests/s")
    yield (*head, "per million") if has_cost else head
    for each in advice.candidates:
        computed = each.prediction.figures["computed_prompt_tokens"]
        kept, order = "✓" if each.keeps(advice.limit) else "✗", ORDERS[each.by_context]
        shown = (f"{each.kv_tokens:,}", order.split(",")[0], in_ms(each.value), kept)
        rate = "" if each.rate is None else f"{each.rate.per_s:.3g}"
        row = (*shown, f"{computed:,.0f}", rate)
        cost = advice.cost(each)
        yield (*row, "" if cost is None else f"{cost:,.2f}") if has_cost else row
    for tier in advice.tier.tried if advice.tier else ():
        computed = tier.prediction.figures["computed_prompt_tokens"]
        kept = "✓" if tier.keeps(advice.limit) else "✗"
        name = f"+ tier of {tier.tier_tokens:,}", f"at {tier.bytes_per_s / 1e9:.3g} GB/s"
        row = (*name, in_ms(tier.value), kept, f"{computed:,.0f}", "")
        yield (*row, "") if has_cost else row


def _verify_all(
    advice: "Advice", runs: "Sequence[tuple[SizeTried, list[str]]]", folder: Path
) -> int:
    """Make these runs until a signal comes; the worst exit code. Raises UsageError."""
    names = {False: "first-come", True: "context"}
    outs = [
        folder / f"{tried.kv_tokens}-{'tier' if tried.tier_tokens else names[tried.by_context]}"
        for tried, _ in runs
    ]
    for out in outs:
        check_directory(out)
    codes = [0]
    for (tried, words), out in zip(runs, outs, strict=True):
        code, signal_number = asyncio.run(_made([*words[1:], "--out", str(out)]))
        if signal_number:
            return 128 + signal_number
        if code not in WHOLE:
            failed = TargetError if code == TargetError.exit_code else UsageError
            raise failed(f"{shlex.join(words)} ended with exit code {code}: see {out}")
        _verify(advice, tried, out)
        if code:
            say(f"{out} ended with exit code {code}: what was measured may not be the engine's")
        codes.append(code)
    return worst(codes)


async def _made(words: Sequence[str]) -> tuple[int, int]:
    """The exit code of a run, and the signal that came meanwhile."""
    code = 0
    with interruptible() as interruption:
        code = await command_run(words, interruption)
    return code, interruption.signal_number


def _verify(advice: "Advice", tried: "SizeTried", out: Path) -> None:
    """Say how far the prediction of this run was off. Raises UsageError."""
    from loadgen.twin.advise import value_of

    times_ms = recorded_run(out).requests.latency(advice.limit.statistic.metric.name)
    if np.isnan(times_ms).all():
        raise UsageError(f"{out} has no reply to its end: nothing to verify")
    value = value_of(advice.limit, times_ms[~np.isnan(times_ms)])
    kept = "keeps" if value <= advice.limit.bound else "misses"
    off = f"the twin was {tried.value / value - 1:+.0%} off"
    if tried.tier_tokens:
        off = f"foretold were {tried.value:,.0f} ms, of a link that may not be this machine's"
    tell(f"measured: {tried.words}: {value:,.0f} ms, which {kept} {advice.limit.text}; {off}")


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UsageError(f"--kv-tokens {text}: write whole numbers, as 5120,10240") from None


def _recorded_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm advise",
        usage="kvswarm advise RUN | [FILE] [workload options] --twin FILE --slo LIMIT [options]",
        description="Which KV cache, order, rate and tier keep an objective, by simulation: for the"
        " requests of a run, or for what `kvswarm run` with these options would send; and the runs"
        " that could overturn it.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run whose requests are sent")
    _add_options(parser)
    return parser


def advise_parser() -> argparse.ArgumentParser:
    """Of its options beside a workload's."""
    parser = CommandParser(prog="kvswarm advise", allow_abbrev=False, add_help=False)
    _add_options(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--slo", required=True, metavar="LIMIT", help='as "ttft_ms.p95<=500"')
    add("--twin", type=Path, default=Path(TWIN_JSON), help="the server, by `kvswarm calibrate`")
    add("--kv-tokens", default="", metavar="N,N…", help="sizes to try (default: up to all reuse)")
    add("--no-rates", action="store_true", help="do not search the highest rate of each candidate")
    add("--gpu-gb", type=float, metavar="G", help="offer caches that fit its GiB beside --model")
    add("--model", dest="model_dir", metavar="DIR|NAME", help="whose config tells bytes of a token")
    add("--price-per-gpu-hour", type=float, metavar="P", help="tell the cost of a million requests")
    add("-o", "--output", type=Path, metavar="FILE", help="draw the frontier: .svg or .png")
    add("--verify", type=Path, metavar="DIR", help="make the runs that could overturn it, in DIR")
