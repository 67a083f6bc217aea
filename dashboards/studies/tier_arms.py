"""The arms of the study of tiers: a target with a size of its tier, and the engine without one."""

from dataclasses import dataclass

from dashboards.studies.cell import NATIVE, OFFLOAD, PLAIN, Cells
from dashboards.studies.wording import memory
from loadgen.locality.measured import run_bytes_per_token
from loadgen.targets.plan import BYTES_PER_GB

TIERED, FILES = "vllm-tiered", "vllm-lmcache-files"
NODE = "vllm-lmcache-codec"
KINDS = {
    NATIVE: "vLLM's own",
    TIERED: "vLLM's own and files",
    OFFLOAD: "LMCache's",
    FILES: "LMCache's and files",
    NODE: "LMCache's and valkey",
}
"""Tiers by the target that has them."""
BACKED = (FILES, NODE)
"""LMCache's with a tier behind its memory that has no bound."""
CACHED = "cached_prompt_tokens"
EXTERNAL = "external_prompt_tokens"
STORED, LOADED = "offload_stored_bytes", "offload_loaded_bytes"


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs of one target with one size of a tier; `name` as it stands in a sentence."""

    name: str
    cells: Cells


def size_of(l1_gb: str | float) -> str:
    """Of so much `--l1-gb`, in bytes."""
    return memory(BYTES_PER_GB * float(l1_gb))


def arms(cells: Cells) -> list[Arm]:
    """Every tier of every size, in the order of `KINDS`."""
    return [
        Arm(f"{size_of(size)} of {said}", part)
        for target, said in KINDS.items()
        for size, part in cells.where(target=target).by("l1_gb")
        if len(part)
    ]


def small_and_large(cells: Cells) -> tuple[Cells, Cells]:
    """The engine alone, with the cache that tiers lie behind and with the largest; none of what was
    not measured."""
    alone = cells.where(target=PLAIN)
    behind = [size for arm in arms(cells) for size in arm.cells.values("kv_tokens")]
    larger = [
        each for each in alone.values("kv_tokens") if behind and float(each) > float(behind[0])
    ]
    small, large = (
        alone.where(kv_tokens=each[-1]) if each else Cells(()) for each in (behind, larger)
    )
    return small, large


def bytes_per_token(cells: Cells) -> int | None:
    """Of KV, by what the run says of its engine."""
    return run_bytes_per_token(cells.all[0].run) if len(cells) else None
