"""`kvswarm ladder`: what a KV cache, a batch and blocks buy, measured in this process."""

import argparse
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loadgen.cli.attention import NAMED, prompt_tokens
from loadgen.cli.made_by import measured_now, told
from loadgen.cli.policies import told_refusals
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.target_run import demo_model, model_named
from loadgen.launch.terminal import say, tell
from loadgen.runs.directory import recording, require_writable

if TYPE_CHECKING:
    from dashboards.ladder_page import Ladder
    from kv_policies.generation import BatchRow, GenerationPlan, GenerationRow

BLOCKS = (16, 32, 128)
PROFILED_TOKENS, QUICK_PROFILED_TOKENS = 512, 128
QUICK: dict[str, Any] = {
    "generated": (16, 48),
    "prompts": (32, 128),
    "batches": (1, 4, 16),
    "batch_generated": 8,
    "repeats": 1,
}
BYTES_PER_DECIMAL_GB = 10**9

T = TypeVar("T", "GenerationRow", "BatchRow")


def ladder_command(arguments: list[str]) -> int:
    """Measure, print a sentence of each table, write page, picture and CSV. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    folder: Path = parsed.page or parsed.out
    require_writable(folder, "--out" if parsed.page is None else "--page")
    with needs("trained,report"), told_refusals():
        from dashboards.ladder_page import ladder_findings, write_ladder_page
        from kv_policies.device import device_name, device_named

        ladder = _measured(parsed)
        words, device = ["kvswarm", "ladder", *told(arguments)], device_name(device_named())
        made = measured_now(words, NAMED, device=device)
        tell("\n".join(ladder_findings(ladder).values()))
        with recording(folder):
            folder.mkdir(parents=True, exist_ok=True)
            page = write_ladder_page(ladder, made, folder)
        tell(str(page))
    return 0


def _measured(parsed: argparse.Namespace) -> "Ladder":
    import torch

    from dashboards.ladder_page import Ladder
    from kv_policies.decode_profile import profile_step
    from kv_policies.device import device_named, free_bytes
    from kv_policies.generation import measure_batches, measure_generation
    from kv_policies.kv_allocation import KvNeed, measure_allocation, measure_capacity, workload
    from kv_policies.policy import require_size
    from kv_policies.subject import loaded_model

    plan, blocks = _plan(parsed), parsed.block or BLOCKS
    usual = QUICK_PROFILED_TOKENS if parsed.quick else PROFILED_TOKENS
    profiled = usual if parsed.profile_tokens is None else parsed.profile_tokens
    require_size("--profile-tokens", profiled, 2)
    folder = Path(model_named(parsed.model) or demo_model("tiny"))
    device = device_named()
    # The processors that lack kernels for shorter types would be timed on their lack.
    model = loaded_model(folder, device, torch.float32 if device.type == "cpu" else None)
    prompts = prompt_tokens(folder, parsed.corpus)
    config = model.config.get_text_config(decoder=True)
    texts = workload(prompts)
    piece = max(getattr(config, "max_position_embeddings", 0), *texts)
    budget_bytes = _budget_bytes(parsed.budget_gb, free_bytes(device))
    need = KvNeed(config, texts, piece, budget_bytes, model.dtype, device)
    say(f"allocating KV up to {parsed.budget_gb:g} GB, and a step is profiled …")
    return Ladder(
        allocation=list(measure_allocation(need, plan.batches, blocks)),
        capacity=list(measure_capacity(need, blocks, max(plan.batches))),
        kernels=list(profile_step(model, profiled)),
        generation=list(_telling(measure_generation(model, plan))),
        batches=list(_telling(measure_batches(model, plan))),
        piece_tokens=piece,
        budget_bytes=budget_bytes,
    )


def _plan(parsed: argparse.Namespace) -> "GenerationPlan":
    from kv_policies.generation import GenerationPlan

    given = {name: getattr(parsed, name) for name in ("generated", "prompts", "batches", "repeats")}
    known = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    return GenerationPlan(**{**(QUICK if parsed.quick else {}), **known})


def _budget_bytes(given_gb: float, free: int | None) -> int:
    """Raises UsageError for more than there is: it is going to be used up."""
    if not 0 < given_gb < math.inf:
        raise UsageError(f"--budget-gb {given_gb:g}: give more than 0")
    if free is not None and given_gb * BYTES_PER_DECIMAL_GB > free:
        free_gb = free / BYTES_PER_DECIMAL_GB
        raise UsageError(f"--budget-gb {given_gb:g}: {free_gb:.1f} GB are free here, give less")
    return round(given_gb * BYTES_PER_DECIMAL_GB)


def _telling(rows: Iterable[T]) -> Iterator[T]:
    """The rows, each told as it comes."""
    for row in rows:
        batch = getattr(row, "batch", 1)
        way = "a cache" if getattr(row, "has_cache", True) else "no cache"
        say(
            f"{row.generated_tokens:,} tokens after {row.prompt_tokens:,}, {way}, a batch of"
            f" {batch}: {row.seconds:.3g} s"
        )
        yield row


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm ladder",
        description="Time, memory and kernels of generation with a KV cache and without, in batches"
        " of one length, and what KV takes in one piece, in growing tensors and in blocks.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", help="folder, or `trained` (default: the demo model, random weights)")
    add("--generated", type=int, nargs="+", metavar="N", help="generated lengths (200 500 1000)")
    add("--prompts", type=int, nargs="+", metavar="N", help="prompt lengths (64 256 512)")
    add("--batches", type=int, nargs="+", metavar="N", help="sizes of static batches (1 to 64)")
    add("--repeats", type=int, metavar="N", help="of each measurement (default: 2)")
    add("--block", type=int, nargs="+", metavar="N", help="tokens of a block (16 32 128)")
    add("--budget-gb", type=float, default=1.0, help="GB that KV may take (default: 1.0)")
    add(
        "--profile-tokens", type=int, metavar="N", help="length of the profiled step (default: 512)"
    )
    add("--corpus", type=Path, help="whose prompts are stored (default: the demo corpus)")
    add("--quick", action="store_true", help="short lengths, three batches, once each")
    add("--out", type=Path, default=Path("runs/ladder"), metavar="DIR", help="for page and figures")
    add("--page", type=Path, metavar="DIR", help="write them here instead")
    return parser
