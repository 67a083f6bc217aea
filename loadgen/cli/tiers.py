"""`kvswarm tiers`: where KV should live, by bytes of a token, prefill rate and links."""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.target_run import demo_model, model_named
from loadgen.launch.terminal import tell
from loadgen.locality.break_even import MOST, USUAL_LINKS, Computing, Link, check_bytes_per_token
from loadgen.locality.kv_format import PlannedEngine, ToldFigure, model_path, run_told_bytes
from loadgen.targets.plan import BYTES_PER_GB
from rag_store.cli.output import aligned

CONTEXT_TOKENS = 8000
SIZES_GB = (1.0, 100.0)


def tiers_command(arguments: list[str]) -> int:
    """Print from which bandwidth and length on loading KV is faster than computing it. Raises
    UsageError."""
    parsed = _parser().parse_args(arguments)
    _check(parsed)
    links = [Link.parse(each) for each in parsed.link] or list(USUAL_LINKS)
    told_bytes, told_rate = _bytes(parsed), _rate(parsed)
    if told_bytes.value is None:
        raise UsageError(f"bytes of a token: {told_bytes.source}: give --bytes-per-token")
    computing = Computing(told_bytes.value, told_rate[0])
    if parsed.format == "json":
        print(json.dumps(_object(computing, links, parsed.context_tokens), indent=2))
        return 0
    tell("\n".join(_lines(computing, links, parsed.context_tokens, told_bytes, told_rate[1])))
    return 0


def _check(parsed: argparse.Namespace) -> None:
    if parsed.run is None and parsed.prefill_rate is None:
        raise UsageError(
            "how fast are prompts computed? give --prefill-rate TOKENS/S, or the directory of a RUN"
            " of one user"
        )
    for name, value in (
        ("prefill-rate", parsed.prefill_rate),
        ("context-tokens", parsed.context_tokens),
    ):
        if value is not None and not 1 / MOST <= value <= MOST:
            raise UsageError(f"--{name} {value:g}: give a number above 0, and {MOST:g} at most")
    check_bytes_per_token(parsed.bytes_per_token)
    for name, needless in (
        ("--model", parsed.model is not None),
        (f"RUN {parsed.run}", parsed.run is not None and parsed.prefill_rate is not None),
    ):
        if needless and parsed.bytes_per_token is not None:
            raise UsageError(f"{name} tells nothing that is not given: leave out --bytes-per-token")


def _bytes(parsed: argparse.Namespace) -> ToldFigure:
    if parsed.bytes_per_token is not None:
        return ToldFigure(parsed.bytes_per_token, "--bytes-per-token")
    named = model_named(parsed.model)
    if parsed.run is not None:
        return run_told_bytes(parsed.run, model_path(named) if named else None)
    model = model_path(named) if named else demo_model("tiny")
    return PlannedEngine.of_this_machine(model).told_bytes(model)


def _rate(parsed: argparse.Namespace) -> tuple[float, str]:
    """Tokens a second, and who says so."""
    if parsed.prefill_rate is not None:
        return parsed.prefill_rate, "--prefill-rate"
    with needs("compare"):
        from loadgen.locality.prefill import prefill_rate

        found = prefill_rate(parsed.run)
    return found.tokens_per_s, found.words


def _lines(
    computing: Computing, links: Sequence[Link], tokens: float, told: ToldFigure, rate: str
) -> Iterator[str]:
    each = computing.bytes_per_token
    yield f"bytes of a token: {each:,.0f} ({told.source})"
    yield f"prompt tokens computed a second: {computing.tokens_per_s:,.0f} ({rate})"
    yield (
        f"break-even bandwidth: {_bandwidth(computing.break_even_bytes_per_s)}; over a slower link"
        " KV is computed sooner than it is loaded"
    )
    yield "; ".join(
        f"--l1-gb {size:g} holds {BYTES_PER_GB * size / each:,.0f} tokens" for size in SIZES_GB
    )
    yield ""
    yield from _table(computing, links, tokens)
    yield ""
    yield (
        "Links are taken at what is written here, and carry nothing else. Measure yours: a tier's"
        " own code may be the slower part."
    )


def _table(computing: Computing, links: Sequence[Link], tokens: float) -> Iterator[str]:
    computed_s = computing.computed_s(tokens)
    rows = [("link", "bandwidth", f"{tokens:,.0f} tokens", "against computing", "pays from")]
    rows.append(("computing", "", _time(computed_s), "", ""))
    for link in links:
        loaded_s, rate = computing.loaded_s(link, tokens), _bandwidth(link.bytes_per_s)
        ratio, pays = _factor(computed_s / loaded_s), _from(computing.pays_from_tokens(link))
        rows.append((link.name, rate, _time(loaded_s), ratio, pays))
    yield from aligned(rows)


def _factor(ratio: float) -> str:
    said = max(ratio, 1 / ratio)
    return f"{_three(said)} times as {'fast' if ratio >= 1 else 'long'}"


def _from(tokens: float | None) -> str:
    if tokens is None:
        return "never"
    return "any length" if tokens < 1 else f"{math.ceil(tokens):,} tokens"


def _bandwidth(bytes_per_s: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{_three(bytes_per_s / size)} {unit}"
    return f"{_three(bytes_per_s)} B/s"


def _time(seconds: float) -> str:
    return f"{_three(1000 * seconds)} ms" if seconds < 1 else f"{_three(seconds)} s"


def _three(value: float) -> str:
    """With three digits or all before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def _object(computing: Computing, links: Sequence[Link], tokens: float) -> dict[str, Any]:
    return {
        "bytes_per_token": computing.bytes_per_token,
        "prefill_tokens_per_s": computing.tokens_per_s,
        "break_even_bytes_per_s": computing.break_even_bytes_per_s,
        "context_tokens": tokens,
        "computed_s": computing.computed_s(tokens),
        "links": [
            {
                **asdict(link),
                "loaded_s": computing.loaded_s(link, tokens),
                "pays_from_tokens": computing.pays_from_tokens(link),
            }
            for link in links
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm tiers",
        usage="kvswarm tiers [RUN] [--prefill-rate TOKENS/S] [--model NAME] [--link LINK]…",
        description="From which bandwidth, and which length on, loading KV is faster than computing"
        " it again. No engine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", nargs="?", type=Path, metavar="RUN", help="a run of one user, for model and rate")
    rate = "prompt tokens computed a second (default: the run's)"
    add("--prefill-rate", type=float, metavar="TOKENS/S", help=rate)
    add("--model", help="its folder, config.json or name (default: the run's, else the demo model)")
    add("--bytes-per-token", type=int, help="of the KV cache (default: by model and engine)")
    add(
        "--link",
        action="append",
        default=[],
        metavar="NAME=RATE,LATENCY",
        help="as nvme=7GB/s,0.1ms or 100Gbit/s; again for more (default: usual ones)",
    )
    told = f"of the contexts in the table (default: {CONTEXT_TOKENS})"
    add("--context-tokens", type=float, default=CONTEXT_TOKENS, metavar="N", help=told)
    add("--format", choices=("table", "json"), default="table", help="default: table")
    return parser
