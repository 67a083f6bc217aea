"""Which kernel a decode step spends its time in, with a KV cache and without.

Without one a step computes all tokens anew: matrices are multiplied by matrices, and each weight
read is used once for every token. With one there is a single row: the same weights are read for a
vector, and memory sets the pace.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, PreTrainedModel

from kv_policies.generation import random_tokens
from kv_policies.policy import require_size

PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0}
"""Products of matrices: which of the inputs is the one on the left."""
STEPS = 3
QUIET = "99"
"""Else torch's profiler writes to the terminal; it reads this when it is first used."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel in one step: `rows` are those of the matrix on the left, None where it multiplies
    none; then it does `flops` operations over `moved_bytes` of inputs and output, both derived from
    their sizes. `share` is of the step's time in kernels."""

    has_cache: bool
    tokens: int
    kernel: str
    rows: int | None
    ms: float
    share: float
    flops: int
    moved_bytes: int

    @property
    def flops_per_byte(self) -> float | None:
        """Few: memory sets the pace. Many: arithmetic does."""
        return self.flops / self.moved_bytes if self.moved_bytes else None


def profile_step(model: PreTrainedModel, tokens: int) -> Iterator[KernelRow]:
    """Kernels of the step after `tokens` - 1 tokens, each by the rows it takes, the longest first.

    Raises PolicyError for less than two tokens, or for very many.
    """
    require_size("profile tokens", tokens, 2)
    ids = random_tokens(model, 1, tokens)
    with torch.inference_mode():
        for has_cache in (True, False):
            caches = [DynamicCache(config=model.config) for _ in range(STEPS + 1)]
            for cache in caches if has_cache else ():
                model(ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
            steps = [
                partial(model, ids[:, -1:], past_key_values=cache, use_cache=True)
                if has_cache
                else partial(model, ids, use_cache=False, logits_to_keep=1)
                for cache in caches
            ]
            yield from _rows(_events(model, steps), model, has_cache, tokens)


def _events(model: PreTrainedModel, steps: Sequence[Callable[[], object]]) -> list[Any]:
    """Of all steps but the first, which warms up."""
    first, *others = steps
    first()
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    activities = [ProfilerActivity.CPU]
    if model.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        for step in others:
            step()
    found = profiler.key_averages(group_by_input_shape=True)
    return [each for each in found if each.key.startswith("aten::")]


def _rows(
    events: Sequence[Any], model: PreTrainedModel, has_cache: bool, tokens: int
) -> list[KernelRow]:
    on_gpu, value_bytes = model.device.type == "cuda", model.dtype.itemsize
    us: dict[tuple[str, int | None], float] = defaultdict(float)
    work: dict[tuple[str, int | None], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for event in events:
        size = _product(event)
        key = (event.key.removeprefix("aten::"), size[0] if size else None)
        us[key] += event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if size:
            rows, inner, columns = size
            moved = value_bytes * (rows * inner + inner * columns + rows * columns)
            flops, before = work[key]
            work[key] = (
                flops + event.count * 2 * rows * inner * columns,
                before + event.count * moved,
            )
    total = sum(us.values()) or 1.0
    made = [
        KernelRow(
            has_cache,
            tokens,
            name,
            rows,
            each / 1000 / STEPS,
            each / total,
            *(part // STEPS for part in work[name, rows]),
        )
        for (name, rows), each in us.items()
    ]
    return sorted((row for row in made if row.ms > 0), key=lambda row: -row.ms)


def _product(event: Any) -> tuple[int, int, int] | None:
    """Rows, inner size and columns of a product of two matrices."""
    place = PRODUCTS.get(event.key)
    if place is None:
        return None
    left, right = event.input_shapes[place : place + 2]
    batch = left[0] if len(left) > 2 else 1
    return batch * left[-2], left[-1], right[-1]
