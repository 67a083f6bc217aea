"""Attention under a policy: transformers' fused one, or by hand where a policy asks for weights.

transformers makes one mask for all layers, by the length of the first. Under a policy layers differ
in what they hold; all of it comes before the pass, so that the mask follows from two lengths.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kv_policies.policy import KeysValues, KvPolicy, PolicyCache, PolicyError

NAME = "kv_policies"
QUERIES_AT_ONCE = 256
"""By hand, the weights of so many queries are there at a time."""

Observe = Callable[[int, Tensor], None]
Fetch = Callable[[int, Tensor], KeysValues | None]


@contextmanager
def policies_attend(model: PreTrainedModel) -> Iterator[None]:
    """The model's attention is this one within the block.

    Policies that ask for more than keys and values get it by `read`.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise PolicyError(f"{type(model).__name__} takes no attention but its own: give another")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def read(
    model: PreTrainedModel, policy: KvPolicy, cache: PolicyCache, tokens: Tensor, last: int = 0
) -> Tensor:
    """Logits of the `last` of new tokens, 0 for all, [batch, tokens, vocabulary], from one pass.

    After the first pass a policy that fetches gets a pass for each token: what one query fetches,
    an earlier one must not read.
    """
    asked: dict[str, Any] = {"observe": cache.attended} if policy.sees_attention else {}
    asked |= {"fetch": cache.fetched} if policy.fetches else {}
    is_first = cache.get_seq_length() == 0
    is_split = policy.fetches and not is_first
    around = policy.first_pass(model, tokens.shape[1]) if is_first else nullcontext({})
    with around as more:
        parts = [
            model(
                input_ids=part,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=0 if is_split else last,
                **asked,
                **more,
            ).logits
            for part in (torch.split(tokens, 1, dim=1) if is_split else [tokens])
        ]
    return torch.cat(parts, dim=1)[:, -last:] if is_split else parts[0]


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    *,
    scaling: float | None = None,
    observe: Observe | None = None,
    fetch: Fetch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """As transformers calls it: queries of [batch, heads, queries, head dim], keys and values of
    what they may read, in which their own tokens are the last. Without dropout or padding."""
    more = None if fetch is None else fetch(module.layer_idx, query)  # type: ignore[arg-type]
    if more is not None:
        key, value = more.then(KeysValues(key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if observe is not None:
        output, sums = attended(query, key, value, scale)
        observe(module.layer_idx, sums)  # type: ignore[arg-type]
        return output.transpose(1, 2).contiguous(), None
    queries, tokens = query.shape[-2], key.shape[-2]
    mask = None
    if 1 < queries < tokens:
        mask = visible(queries, tokens, query.device)[None, None]
    result: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, mask, scaling=scale
    )
    return result


def visible(queries: int, tokens: int, device: torch.device) -> Tensor:
    """[queries, tokens]: all tokens before the pass, and of its own those up to the query."""
    return torch.ones(queries, tokens, dtype=torch.bool, device=device).tril(tokens - queries)


def attended(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The output, as `query`, and what each token was given, [batch, KV heads, tokens] in float32,
    summed over queries and over the heads that share a KV head."""
    batch, heads, queries, _ = query.shape
    kv_heads, tokens = key.shape[1], key.shape[2]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, queries, -1)
    allowed = visible(queries, tokens, query.device)
    sums = torch.zeros(batch, kv_heads, tokens, device=query.device)
    outputs = []
    for start in range(0, queries, QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        logits = grouped[..., part, :] @ key.unsqueeze(2).transpose(-1, -2) * scale
        logits = logits.float().masked_fill(~allowed[part], -torch.inf)
        weights = logits.softmax(dim=-1)
        sums += weights.sum(dim=(2, 3))
        outputs.append(weights.to(value.dtype) @ value.unsqueeze(2))
    return torch.cat(outputs, dim=-2).reshape(batch, heads, queries, -1), sums


AttentionInterface.register(NAME, attend)
