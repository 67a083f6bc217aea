"""`kvswarm demo`: what the order of service is worth on a cache too small for all contexts."""

import argparse
import time
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.launch.arguments import (
    CommandParser,
    RunArguments,
    add_target_options,
    target_arguments,
)
from loadgen.launch.supervised import run_supervised
from loadgen.launch.terminal import command_line, tell
from loadgen.runs.exit_code import DONE, SATURATED

TARGETS = ("vllm", "vllm-context")
KV_TOKENS = 5120
CONTEXTS, BATCH_SIZE, BATCHES = 6, 36, 3
"""At about 1,500 tokens each, half of the contexts fit in the cache."""


def demo_command(arguments: list[str]) -> int:
    """Run the same batches on vLLM in its own order and context by context; show both."""
    parsed = _parser().parse_args(arguments)
    if parsed.batches < 1:
        raise UsageError(f"--batches {parsed.batches} compares nothing: give 1 or more")
    run = _run(parsed)
    model = f"The model is {parsed.model}."
    if not parsed.model:
        model = "The model has random weights: its times mean something, its words do not."
    tell(
        f"The same {parsed.batches} batches of {BATCH_SIZE} shuffled questions about {CONTEXTS}"
        " documents of about 1,500 tokens, twice"
        f" on a KV cache of {parsed.kv_tokens} tokens: first come, first served, then context by"
        f" context. {model}\n"
    )
    code = run_supervised("run", run)
    finished = all((run.out / name / "summary.json").is_file() for name in TARGETS)
    if finished:
        tell(
            "\nContext by context, a document is computed about once a batch; first come, first"
            " served computes it again whenever others have driven it out of the cache. A cache"
            " that holds all of them (try --kv-tokens 20480) leaves nothing to gain: both compute"
            " the same tokens."
            f"\n\nCSVs to keep: {run.out}/*/requests.csv, batches.csv, summary.csv and more"
            "\nHow sure the difference is:"
        )
        tell(command_line(["kvswarm", "compare", *(str(run.out / name) for name in TARGETS)]))
    # A demonstration is no gate: a busy machine is said above, and does not make it fail.
    return DONE if finished and code == SATURATED else code


def _run(parsed: argparse.Namespace) -> RunArguments:
    swarm = {
        "--contexts": CONTEXTS,
        "--batch-size": BATCH_SIZE,
        "--batches": parsed.batches,
        "-u": 1,
        "-r": 1,
    }
    return RunArguments(
        file="batched",
        host=None,
        targets=TARGETS,
        target_arguments=target_arguments(parsed),
        out=parsed.out,
        rest=tuple(str(part) for option in swarm.items() for part in option),
    )


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm demo", description="first come first served, then by context"
    )
    parser.add_argument("--batches", type=int, default=BATCHES, help="batches for each of them")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}",
        help="where the runs are kept",
    )
    add_target_options(parser)
    parser.set_defaults(kv_tokens=KV_TOKENS)
    return parser
