"""`kvswarm advise`: the smallest cache that keeps an objective, by a twin."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loadgen.cli.twin import TWIN_JSON, aligned, with_vllm
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser
from loadgen.runs.directory import check_directory
from loadgen.sweep.table import WHOLE

if TYPE_CHECKING:
    from loadgen.twin.advise import Advice, SizeTried


def advise_command(arguments: list[str]) -> int:
    """The smallest cache, in both orders, that keeps an objective. Raises UsageError."""
    parsed = _advise_parser().parse_args(arguments)
    with with_vllm():
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
    print("\n".join(aligned(rows)))
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
        np.array([each.ttft_s for each in load.measured.values()]),
        np.array([each.e2e_s for each in load.measured.values()]),
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
