"""What every policy must hold to, on a tiny model with random weights, in seconds."""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from kv_policies.attention import policies_attend, read
from kv_policies.policies.full import Full
from kv_policies.policy import KvPolicy, PolicyCache

VOCABULARY = 97
PASSES = (560, *[1] * 8, 8)
"""Tokens of each pass: a prompt, some steps, and several tokens at once."""
SHORT_PASSES = (6, 1, 1)
NEAR = 1e-3


def broken_promises(policy: KvPolicy) -> Iterator[str]:
    """A sentence for each thing that a policy must not do and does. Raises PolicyError."""
    tokens = random_tokens(2, sum(PASSES))
    said, _ = led(tiny_model(), policy, tokens, PASSES)
    if not said.isfinite().all():
        yield "what the model says is no number any more"
        return
    again, _ = led(tiny_model(), policy, tokens, PASSES)
    if not torch.equal(said, again):
        yield "the same text gives other logits the second time"
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 1) % VOCABULARY
    other, _ = led(tiny_model(), policy, later, PASSES)
    if not torch.equal(said[:, :-1], other[:, :-1]):
        yield "a later token changes what was said before it"
    alone, _ = led(tiny_model(), policy, tokens[:1], PASSES)
    if not torch.allclose(said[:1], alone, rtol=NEAR, atol=NEAR):
        yield "a text of a batch changes another"


def what_it_does(policy: KvPolicy) -> str:
    """Whether it is the full cache for a few tokens, and its share of bytes for many, in words."""
    few = random_tokens(2, sum(SHORT_PASSES))
    said, exact = (led(tiny_model(), each, few, SHORT_PASSES)[0] for each in (policy, Full()))
    same = "the same as" if torch.allclose(said, exact, rtol=NEAR, atol=NEAR) else "other than"
    many = random_tokens(1, sum(PASSES))
    held, whole = (led(tiny_model(), each, many, PASSES)[1].held_bytes for each in (policy, Full()))
    return (
        f"{same} the full cache for {few.shape[1]} tokens, {held / whole:.0%} of its bytes for"
        f" {many.shape[1]}"
    )


@cache
def tiny_model() -> PreTrainedModel:
    """As many layers as policies that merge some ask for, of next to nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=18,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=16,
            initializer_range=0.2,
            max_position_embeddings=1024,
        )
        model: PreTrainedModel = LlamaForCausalLM(config).eval()
        return model


def led(
    model: PreTrainedModel, policy: KvPolicy, tokens: Tensor, passes: Sequence[int]
) -> tuple[Tensor, PolicyCache]:
    """Logits of all tokens, read in passes of these lengths, and the cache after them."""
    cache = policy.cache(model.config)
    with policies_attend(model), torch.inference_mode():
        parts = [
            read(model, policy, cache, part) for part in torch.split(tokens, list(passes), dim=1)
        ]
    return torch.cat(parts, dim=1), cache


def random_tokens(batch: int, tokens: int) -> Tensor:
    """[batch, tokens], the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (batch, tokens), generator=generator)
