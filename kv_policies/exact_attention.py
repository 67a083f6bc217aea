"""Attention computed three ways, and what each moves between memories.

Naively all weights are there at once. In blocks, with a running maximum and sum, only a tile of
them is (Milakov and Gimelshein, 2018; FlashAttention, Dao et al., 2022). torch's fused kernel does
the latter inside the processor's fast memory. All three give the same output.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kv_policies.attention import visible
from kv_policies.device import device_named, peak_of, seconds_of
from kv_policies.policy import ModelShape, PolicyError, require_size

TILE = 128
"""Queries and tokens of a tile of the blockwise one."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of [batch, heads, tokens, head dim] with as many heads of each."""
    tokens = query.shape[-2]
    logits = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    weights = logits.masked_fill(~visible(tokens, tokens, query.device), -torch.inf).softmax(dim=-1)
    output: Tensor = weights @ value
    return output


def blockwise(query: Tensor, key: Tensor, value: Tensor, tile: int = TILE) -> Tensor:
    """The same, a tile at a time: what was summed is scaled anew where a larger maximum comes."""
    tokens, scale = query.shape[-2], query.shape[-1] ** -0.5
    outputs = []
    for start in range(0, tokens, tile):
        part = query[..., start : start + tile, :]
        rows = part.shape[-2]
        most = torch.full((*part.shape[:-1], 1), -torch.inf, device=query.device)
        total = torch.zeros_like(most)
        summed = torch.zeros(part.shape, device=query.device)
        for first in range(0, start + rows, tile):
            last = min(first + tile, start + rows)
            logits = (part @ key[..., first:last, :].transpose(-1, -2)).float() * scale
            if last > start:
                places = torch.arange(first, last, device=query.device)
                queries = torch.arange(start, start + rows, device=query.device)
                logits = logits.masked_fill(places > queries[:, None], -torch.inf)
            larger = torch.maximum(most, logits.amax(dim=-1, keepdim=True))
            weights, shrunk = (logits - larger).exp(), (most - larger).exp()
            total = total * shrunk + weights.sum(dim=-1, keepdim=True)
            summed = summed * shrunk + (weights.to(value.dtype) @ value[..., first:last, :]).float()
            most = larger
        outputs.append((summed / total).to(query.dtype))
    return torch.cat(outputs, dim=-2)


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's own kernel."""
    return scaled_dot_product_attention(query, key, value, is_causal=True)


KERNELS: Mapping[str, Attention] = {"naive": naive, "in blocks": blockwise, "fused": fused}


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One kernel at one length: `moved_bytes` is derived, the rest measured; `peak_bytes` is what
    was allocated beside queries, keys and values, None where nobody counts it; `error` the largest
    difference to the naive one in float32, over its largest value."""

    kernel: str
    tokens: int
    ms: float
    peak_bytes: int | None
    moved_bytes: int
    error: float


def measure_attention(
    shape: ModelShape,
    heads: int,
    lengths: Sequence[int],
    *,
    repeats: int = 5,
    device: str | None = None,
) -> Iterator[AttentionRow]:
    """Every kernel at every length, with the head sizes of a model. Raises PolicyError."""
    for tokens in lengths:
        require_size("a length of", tokens, 2)
    on = device_named(device)
    dtype = torch.bfloat16 if on.type == "cuda" else torch.float32
    for tokens in lengths:
        random = torch.Generator().manual_seed(tokens)
        size = (1, heads, tokens, shape.head_dim)
        exact = [torch.randn(size, generator=random) for _ in range(3)]
        wanted = naive(*exact)
        inputs = [each.to(on, dtype) for each in exact]
        for name, kernel in KERNELS.items():
            call = partial(kernel, *inputs)
            with torch.inference_mode():
                found, peak = peak_of(on, call)
                times_s = [seconds_of(on, call) for _ in range(repeats)]
            off = (found.float().cpu() - wanted).abs().max() / wanted.abs().max()
            yield AttentionRow(
                kernel=name,
                tokens=tokens,
                ms=1000 * statistics.median(times_s),
                peak_bytes=peak,
                moved_bytes=moved_bytes(
                    name, tokens, heads, shape.head_dim, inputs[0].element_size()
                ),
                error=float(off),
            )


def moved_bytes(kernel: str, tokens: int, heads: int, head_dim: int, value_bytes: int) -> int:
    """Read from and written to slow memory by a layer.

    Naively queries and keys are read and the weights written, read and written by the softmax, and
    read again with the values. In tiles each tile of queries reads the keys and values before it
    once, and no weight leaves fast memory.
    """
    rows = heads * tokens * head_dim * value_bytes
    if kernel == "naive":
        return 4 * rows + 4 * heads * tokens * tokens * value_bytes
    before = sum(min(start + TILE, tokens) for start in range(0, tokens, TILE))
    return 2 * rows + 2 * heads * head_dim * value_bytes * before


def reserved_tokens(lengths: Sequence[int], most: int, block: int) -> tuple[int, int]:
    """What sequences of these lengths take as one piece of `most` tokens each, and in blocks
    (PagedAttention, Kwon et al., 2023). Raises PolicyError."""
    if not lengths or block < 1 or max(lengths) > most:
        raise PolicyError(f"sequences of 1 to {most} tokens are stored in blocks of one or more")
    return most * len(lengths), sum(-(-length // block) * block for length in lengths)
