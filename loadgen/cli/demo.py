"""`kvswarm demo`: what context diversity costs on a cache too small for it."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from loadgen.cli.arguments import Parser, RunArguments, add_target_options, target_arguments
from loadgen.cli.supervised import run_in_turn
from loadgen.runs.exit_code import DONE, SATURATED
from loadgen.runs.side_by_side import side_by_side

ARMS = {"low-diversity": 2, "high-diversity": 12}
"""Contexts per arm. At about 1,700 tokens each, two fit in the cache and twelve do not."""
KV_TOKENS = 5120
USERS = 4


def demo_command(arguments: list[str]) -> int:
    """Run the same swarm at low and at high diversity and show the difference."""
    parsed = _parser().parse_args(arguments)
    out: Path = parsed.out
    runs = {name: _run(parsed, contexts, out / name) for name, contexts in ARMS.items()}
    print(
        f"The same swarm twice ({USERS} users, {parsed.seconds} s) on a KV cache of"
        f" {parsed.kv_tokens} tokens:\nfirst over 2 documents, which fit in it,"
        " then over 12, which do not.\n",
        flush=True,
    )
    code = run_in_turn("run", list(runs.values()), out / "engine")
    finished = all((run.out / "summary.json").is_file() for run in runs.values())
    if finished:
        print()
        Console(highlight=False).print(side_by_side({name: run.out for name, run in runs.items()}))
        print(f"\nCSVs to keep: {out}/*/requests.csv, summary.csv, locust_stats.csv and more")
    # A demonstration is no gate: a busy machine is said above, and does not make it fail.
    return DONE if finished and code == SATURATED else code


def _run(parsed: argparse.Namespace, contexts: int, out: Path) -> RunArguments:
    swarm = ["--contexts", contexts, "-u", USERS, "-r", USERS, "-t", f"{parsed.seconds}s"]
    return RunArguments(
        file="unordered",
        host=None,
        target=parsed.target,
        target_arguments=target_arguments(parsed),
        out=out,
        rest=tuple(map(str, swarm)),
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kvswarm demo", description="low against high context diversity")
    parser.add_argument("--target", default="vllm", help="see `kvswarm targets`")
    parser.add_argument("--seconds", type=int, default=30, help="length of each of the two swarms")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs") / f"demo-{_stamp()}",
        help="where the two runs are kept",
    )
    add_target_options(parser)
    parser.set_defaults(kv_tokens=KV_TOKENS)
    return parser


def _stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")
