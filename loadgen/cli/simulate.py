"""`kvswarm simulate`: a run on a server's twin, of recorded requests or of any workload."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.twin import TWIN_JSON, with_vllm
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, first_word
from loadgen.launch.configured import value_of
from loadgen.launch.terminal import say, tell
from loadgen.runs.directory import DEFAULT_FILE, RUN_JSON, check_directory
from loadgen.stats.sketch import least_values
from rag_store.cli.output import aligned

if TYPE_CHECKING:
    from loadgen.launch.planned_run import PlannedRun
    from loadgen.twin.directory import SimulatedRun
    from loadgen.twin.engine import EngineShape
    from loadgen.twin.model import TwinModel
    from loadgen.twin.predict import TwinPrediction
    from loadgen.twin.routing import AsRecorded, Fleet
    from loadgen.twin.serve import OfferedLoad, ServedRequest
    from loadgen.twin.shape_of import CalibratedEngine, TierOptions

FIGURES: Mapping[str, tuple[str, str]] = {
    "computed_prompt_tokens": ("prompt tokens computed", "{:,.0f}"),
    "ttft_mean_ms": ("TTFT mean", "{:,.0f} ms"),
    "ttft_p50_ms": ("TTFT p50", "{:,.0f} ms"),
    "ttft_p95_ms": ("TTFT p95", "{:,.0f} ms"),
    "e2e_mean_ms": ("E2E mean", "{:,.0f} ms"),
    "requests_per_s": ("requests/s", "{:.3g}"),
}
"""What is shown of a simulation, in this order."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is simulated: a load on an engine. `measured` are the figures of the run that it is
    of, where nothing is changed; `counted` names the requests that count, None for all. A run
    would give requests up after `timeout_s`. `router` sends requests to the engines that had them.
    `source` says in words whose requests they are, and `assumed` what of the engine nobody told,
    and what is wrong with the run."""

    model: "TwinModel"
    load: "OfferedLoad"
    shape: "EngineShape"
    run: "SimulatedRun"
    source: str
    batched: bool
    measured: Mapping[str, float] | None = None
    counted: frozenset[str] | None = None
    timeout_s: float = math.inf
    is_timeout_given: bool = False
    router: "AsRecorded | None" = None
    assumed: Sequence[str] = ()


def simulate_command(arguments: list[str]) -> int:
    """Serve a recorded run's load, or a planned one, on a twin. Raises UsageError."""
    words = run_words(arguments)
    if words is None:
        parsed = _recorded_parser().parse_args(arguments)
    else:
        parsed, _ = _planned_parser().parse_known_args(arguments)
    with with_vllm():
        if parsed.out is not None:
            check_directory(parsed.out)
        command = ["kvswarm", "simulate", *arguments]
        simulation = _of_run(parsed, command) if words is None else _of_plan(parsed, words, command)
        prediction = _served(simulation, parsed)
    if parsed.format == "json":
        print(json.dumps(_json(simulation, prediction), indent=2, allow_nan=False))
        return 0
    tell("\n".join(_lines(simulation, prediction)))
    return 0


def is_recorded(place: str, words: Sequence[str]) -> bool:
    """Whether a run directory is meant; help tells of one, too. Raises UsageError for a folder that
    is none."""
    if not place:
        return bool({"-h", "--help"} & set(words))
    path = Path(place)
    if path.is_dir() and not (path / RUN_JSON).is_file():
        raise UsageError(f"no run at {place}: name a directory that `kvswarm run` has written")
    return path.is_dir() or (path.suffix != ".py" and "/" in place)


def run_words(
    arguments: Sequence[str], parser: argparse.ArgumentParser | None = None
) -> list[str] | None:
    """What would stand behind `kvswarm run` for the same, without the options of this command's
    `parser`; None where a run directory is meant."""
    place, words = first_word(arguments)
    if is_recorded(place, words):
        return None
    _, rest = (parser or _planned_parser()).parse_known_args(words)
    return [place or DEFAULT_FILE, *rest]


def _of_run(parsed: argparse.Namespace, command: Sequence[str]) -> Simulation:
    from loadgen.locality.trace_sources import recorded_run
    from loadgen.twin.directory import simulated_run
    from loadgen.twin.load import recorded_load
    from loadgen.twin.model import TwinModel
    from loadgen.twin.predict import measured_figures
    from loadgen.twin.routing import HASHED, AsRecorded, Fleet
    from loadgen.twin.serve import cached_most, require_room
    from loadgen.twin.shape_of import (
        CONTEXT,
        TIERS,
        CalibratedEngine,
        changed,
        tier_of,
        unlike_servers,
    )

    model = TwinModel.read(parsed.twin)
    engine = CalibratedEngine.of_run(parsed.run)
    recorded = engine.shape
    if parsed.l1_gb is not None and (parsed.target or "").removesuffix(CONTEXT) not in TIERS:
        raise UsageError("--l1-gb is of a tier: name a --target with one")
    l1_gb = 1.0 if parsed.l1_gb is None else parsed.l1_gb
    tier = tier_of(engine, parsed.target, _tier_options(parsed, l1_gb))
    plugin = dict(recorded.plugin or ())
    shape = changed(recorded, parsed.kv_tokens, parsed.target, plugin, tier)
    load = recorded_load(parsed.run, recorded.block_size)
    require_room(max(load.requests, key=cached_most), shape)
    run = recorded_run(parsed.run)
    unlike = unlike_servers(model, engine.argv, run.description.get("machine"))
    recorded_fleet = Fleet.of_run(run)
    fleet = _fleet(parsed, recorded_fleet)
    is_same_fleet = fleet == recorded_fleet
    is_as_recorded = is_same_fleet and shape == recorded
    has_figures = is_as_recorded and load.measured and not run.is_simulated
    is_hashed = is_same_fleet and fleet.router in HASHED and load.places
    hashed = [] if is_hashed else _assumed_of_router(fleet, run.options)
    return Simulation(
        model=model,
        load=load,
        shape=shape,
        run=simulated_run(run, shape, command, is_as_recorded).on_fleet(fleet),
        source=f"of {parsed.run} ({load.source})",
        batched=run.is_batched,
        measured=measured_figures(load) if has_figures else None,
        counted=frozenset(load.measured) or None,
        router=AsRecorded(load.places) if is_hashed else None,
        assumed=[*load.remarks, *hashed, *engine.assumed, *unlike],
    )


def _of_plan(
    parsed: argparse.Namespace, words: Sequence[str], command: Sequence[str]
) -> Simulation:
    from loadgen.twin.model import TwinModel

    model = TwinModel.read(parsed.twin)
    out = [] if parsed.out is None else ["--out", str(parsed.out)]
    words, links = [*words, *out], _tier_options(parsed, 1.0)
    return planned_simulation(model, words, command, links, _fleet(parsed))


def planned_simulation(
    model: "TwinModel",
    words: Sequence[str],
    command: Sequence[str],
    links: "TierOptions | None" = None,
    fleet: "Fleet | None" = None,
) -> Simulation:
    """Of what `kvswarm run` would send by these words, with links to tiers, or to an engine without
    any, on one engine or on several. Raises UsageError."""
    from loadgen.launch.planned_run import plan_run
    from loadgen.twin.directory import SimulatedRun
    from loadgen.twin.routing import ONE_ENGINE
    from loadgen.twin.shape_of import CalibratedEngine, changed, tier_of

    engine = CalibratedEngine.of_twin(model.engine)
    size = engine.shape.block_size
    planned = plan_run(
        words,
        engine.tokenizer if engine.tokenizer and Path(engine.tokenizer).exists() else None,
        engine.shape.max_model_len,
        engine.shape.usable_blocks * size,
    )
    told = None if links is None else replace(links, l1_gb=planned.l1_gb)
    tier = tier_of(engine, planned.target, told)
    fleet = fleet or ONE_ENGINE
    hashed = _assumed_of_router(fleet, planned.options)
    settings = planned.plugin_settings
    shape = changed(engine.shape, planned.kv_tokens, planned.target, settings, tier)
    for note in planned.notes:
        say(note)
    run = SimulatedRun(
        description=_description(planned, engine),
        shape=shape,
        command=command,
        note=f"the requests are those of `{planned.source}`",
        fleet=fleet,
        rule=planned.rule,
        user_class=planned.user_class,
    )
    batched = planned.load.batching is not None
    return Simulation(
        model=model,
        load=planned.load,
        shape=shape,
        run=run,
        source=f"of `{planned.source}`",
        batched=batched,
        timeout_s=planned.timeout_s,
        is_timeout_given=value_of(planned.words, "timeout") is not None,
        assumed=[*hashed, *engine.assumed],
    )


def _description(planned: "PlannedRun", engine: "CalibratedEngine") -> dict[str, Any]:
    """As a run's `run.json` has it."""
    return {
        "command_line": ["kvswarm", "run", *planned.words],
        "options": planned.options,
        "seed": planned.options.get("seed"),
        "users": planned.options.get("num_users"),
        "corpus_sha256": planned.corpus_sha256,
        "trace_sha256": planned.trace_sha256,
        "workers": 1,
        "target": {"argv": {"vllm": list(engine.argv)}, "tokenizer": engine.tokenizer},
    }


def _tier_options(parsed: argparse.Namespace, l1_gb: float) -> "TierOptions":
    from loadgen.locality.break_even import Link
    from loadgen.twin.shape_of import TierOptions

    memory = Link.parse(parsed.link) if parsed.link else None
    files = Link.parse(parsed.l2_link, "--l2-link") if parsed.l2_link else None
    return TierOptions(l1_gb, memory, files)


def _served(simulation: Simulation, parsed: argparse.Namespace) -> "TwinPrediction":
    from loadgen.twin.directory import SimulatedDirectory
    from loadgen.twin.predict import predict_load, with_edges

    run = simulation.run
    directory = parsed.out and SimulatedDirectory(parsed.out, run, simulation.batched)
    given_up = 0

    def take(each: "ServedRequest") -> None:
        nonlocal given_up
        given_up += each.end_s - each.sent_s > simulation.timeout_s
        if directory:
            directory.add(each)

    try:
        prediction = predict_load(
            simulation.model,
            simulation.load,
            simulation.shape,
            run.fleet,
            router=simulation.router,
            on_served=take,
            counted=simulation.counted,
        )
        _require_patience(simulation, given_up)
        prediction = with_edges(
            prediction,
            *(simulation.model, simulation.load, simulation.shape, run.fleet),
            router=simulation.router,
            counted=simulation.counted,
        )
    except UsageError:
        if directory:
            directory.discard()
        raise
    if directory:
        for outgoing in prediction.unsent:
            directory.add_unsent(outgoing, simulation.load.pace.end_s)
        directory.close(prediction.ledger)
    return prediction


def _require_patience(simulation: Simulation, given_up: int) -> None:
    """Raise UsageError where a run would have given requests up."""
    if given_up:
        usual = "" if simulation.is_timeout_given else " (the default)"
        raise UsageError(
            f"--timeout {simulation.timeout_s:g}{usual} is not modelled, and {given_up:,} requests"
            " took longer: give more"
        )


def _fleet(parsed: argparse.Namespace, recorded: "Fleet | None" = None) -> "Fleet":
    """What is asked for, else what was recorded. Raises UsageError."""
    from loadgen.twin.routing import ONE_ENGINE, Fleet

    known = recorded or ONE_ENGINE
    replicas = known.replicas if parsed.replicas is None else parsed.replicas
    fleet = Fleet(replicas, parsed.router or (known.router if replicas > 1 else ""))
    fleet.require_modelled()
    return fleet


def _assumed_of_router(fleet: "Fleet", options: Mapping[str, Any]) -> list[str]:
    """A line where a router keeps contexts on one engine by a header that nobody gives. Raises
    UsageError where it would keep something else there."""
    from loadgen.twin.routing import HASHED

    session = options.get("session_by") or "context"
    if fleet.router in HASHED and session != "context":
        raise UsageError(
            f"--session-by {session} is not modelled behind --router {fleet.router}, which is taken"
            " to keep a context on one engine"
        )
    if fleet.router in HASHED and not options.get("session_header"):
        return [f"as with --session-header, without which {fleet.router} keeps nothing together"]
    return []


def _json(simulation: Simulation, prediction: "TwinPrediction") -> dict[str, Any]:
    return {
        "simulated": True,
        "shape": asdict(simulation.shape),
        "fleet": asdict(simulation.run.fleet),
        "figures": dict(prediction.figures),
        "intervals": {
            name: [end if math.isfinite(end) else None for end in ends]
            for name, ends in prediction.intervals.items()
        },
        "measured": simulation.measured,
        "cut": prediction.cut,
        "never_sent": sum(len(each.unit.requests) for each in prediction.unsent),
        "outside": prediction.outside,
        "assumed": simulation.assumed,
    }


def _lines(simulation: Simulation, prediction: "TwinPrediction") -> Iterator[str]:
    shape = simulation.shape
    tokens = shape.usable_blocks * shape.block_size
    order = "by context" if shape.plugin is not None else "first come, first served"
    served = len(prediction.e2e_s)
    yield f"simulated, {served:,} requests {simulation.source}"
    tier = shape.tier
    behind = "" if tier is None else f", {tier.tokens:,} tokens of {tier.target} behind it"
    fleet = simulation.run.fleet
    each = f"{fleet.words}, each with" if fleet.replicas > 1 else "on"
    yield f"{each} {tokens:,} tokens of cache{behind}, {order}"
    uncounted = prediction.ledger.requests - served
    if simulation.counted is not None and uncounted:
        yield f"{uncounted:,} more were served and do not count, as in the run itself"
    if prediction.cut or prediction.unsent:
        unsent = sum(len(each.unit.requests) for each in prediction.unsent)
        yield (
            f"{prediction.cut:,} more were cut off at the end of the run, {unsent:,} were due and"
            f" never sent; the longest had waited {1000 * max(prediction.open_e2e_s):,.0f} ms"
        )
    yield from (*prediction.outside, *simulation.assumed)
    yield from _table(prediction, simulation.measured)
    if tier is not None:
        yield f"prompt tokens from the tier: {prediction.ledger.reported_external_tokens:,}"
    if len(prediction.replicas) > 1:
        yield from aligned(_replicas(prediction))


def _replicas(prediction: "TwinPrediction") -> Iterator[Sequence[str]]:
    yield ("replica", "requests", "contexts", "prompt tokens computed")
    for number, each in enumerate(prediction.replicas, 1):
        counts = (each.requests, len(each.contexts), each.computed_tokens)
        yield (str(number), *(f"{count:,}" for count in counts))


def _table(prediction: "TwinPrediction", measured: Mapping[str, float] | None) -> Iterator[str]:
    rows: list[Sequence[str]] = [("", "simulated", "90 % of runs", "measured")]
    for name, (title, form) in FIGURES.items():
        if name == "ttft_p95_ms" and len(prediction.ttft_s) < least_values(0.95):
            continue
        interval = prediction.intervals.get(name)
        within = ""
        if interval is not None and interval[1] < float("inf"):
            within = " to ".join(map(form.format, interval))
        told = "" if measured is None or name not in measured else form.format(measured[name])
        rows.append((title, form.format(prediction.figures[name]), within, told))
    yield from aligned(rows if measured is not None else [row[:3] for row in rows])


def _recorded_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm simulate",
        usage="kvswarm simulate RUN | [FILE] [workload options] --twin FILE [options]",
        description="What a run would be on a server's twin, by vLLM's own scheduler on a counted"
        " clock. RUN is a run directory, whose requests are sent again. Without one, FILE and all"
        " other options are those of `kvswarm run`, with the same seeds and the same prompts.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run directory whose requests are sent")
    add("--kv-tokens", type=int, help="tokens of the engine's KV cache (default: as recorded)")
    add("--target", help="vllm, vllm-offload, vllm-lmcache …, -context (default: as recorded)")
    add("--l1-gb", type=float, help="GiB of memory of a tier (default: 1.0)")
    _add_options(parser)
    return parser


def _planned_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="kvswarm simulate", allow_abbrev=False, add_help=False)
    _add_options(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--twin", type=Path, default=Path(TWIN_JSON), help="the server, by `kvswarm calibrate`")
    add("--replicas", type=int, metavar="N", help="engines of this size (default: as recorded, 1)")
    add(
        "--router",
        default="",
        metavar="POLICY",
        help="before them: round_robin (usual), cache_aware, consistent_hash, haproxy-hash or"
        " haproxy-leastconn (default: as recorded)",
    )
    add("--link", metavar="LINK", help="to a tier's memory: RATE or RATE,LATENCY, as 25GB/s,20us")
    add("--l2-link", metavar="LINK", help="to a tier's files, likewise")
    add("--out", type=Path, metavar="DIR", help="also as a run directory, marked as simulated")
    add("--format", choices=("table", "json"), default="table")
