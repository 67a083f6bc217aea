"""Policies that keep some tokens as they are and forget the others."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_policies.policy import (
    KeysValues,
    KvLayer,
    KvPolicy,
    ModelShape,
    PolicyError,
    at_least,
    parameters_of,
    tensors,
)


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """What one layer holds, oldest token first: keys and values of [batch, KV heads, tokens, head
    dim]. `attention` is [batch, KV heads, tokens], what each token was given by all queries since
    it came, for policies that ask for it by `sees_attention`; None for others."""

    keys: Tensor
    values: Tensor
    attention: Tensor | None
    layer: int
    layers: int

    @property
    def age(self) -> Tensor:
        """[batch, KV heads, tokens]: 0 is the newest token, 1 the one before it."""
        tokens = self.keys.shape[-2]
        ages = torch.arange(tokens - 1, -1, -1, device=self.keys.device, dtype=torch.float32)
        return ages.expand(self.keys.shape[:-1])


class EvictionPolicy(KvPolicy):
    """A policy of one method, `scores`: the tokens with the highest ones stay.

    As many stay as the numbers in the policy's name add up to, unless `budget_tokens` says
    otherwise. Nothing is forgotten while all fits, and never within a pass: the tokens of a prompt
    that is computed at once see each other in full, and what is too much goes before the next pass.
    """

    is_exact_in_pass = True

    @abstractmethod
    def scores(self, held: HeldTokens) -> Tensor:
        """[batch, KV heads, tokens] of the held tokens, higher for those to keep."""

    def budget_tokens(self, layer: int, layers: int) -> int:
        """How many tokens a layer holds."""
        return sum(getattr(self, name) for name in parameters_of(type(self)))

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        budget = self.budget_tokens(index, shape.layers)
        if budget < 1:
            raise PolicyError(f"{self.label}: {budget} tokens in layer {index}: give 1 or more")
        return _EvictionLayer(self, index, shape.layers, budget)


class _EvictionLayer(KvLayer):
    def __init__(self, policy: EvictionPolicy, index: int, layers: int, budget: int) -> None:
        super().__init__()
        self._policy, self._index, self._layers, self._budget = policy, index, layers, budget
        self._kv: KeysValues | None = None
        self._attention: Tensor | None = None

    def append(self, new: KeysValues) -> KeysValues:
        self._kv = new if self._kv is None else self._kv.then(new)
        read = self._kv
        if not self._policy.sees_attention:
            self._evict()
        return read

    def attended(self, sums: Tensor) -> None:
        known = self._attention
        if known is not None:
            sums[..., : known.shape[-1]] += known
        self._attention = sums
        self._evict()

    def held(self) -> Iterable[Tensor]:
        yield from tensors(self._kv)
        if self._attention is not None:
            yield self._attention

    @property
    def held_tokens(self) -> int:
        return 0 if self._kv is None else self._kv.tokens

    def _evict(self) -> None:
        kv = self._kv
        if kv is None or kv.tokens <= self._budget:
            return
        scores = self._policy.scores(HeldTokens(*kv, self._attention, self._index, self._layers))
        _check(self._policy, scores, kv)
        kept = scores.topk(self._budget, dim=-1).indices.sort(dim=-1).values
        self._kv = KeysValues(*(_taken(each, kept) for each in kv))
        if self._attention is not None:
            self._attention = self._attention.gather(-1, kept)


def _check(policy: EvictionPolicy, scores: object, kv: KeysValues) -> None:
    wanted = tuple(kv.keys.shape[:-1])
    found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if found != wanted:
        raise PolicyError(
            f"{policy.label}: scores are {found}, not of shape {wanted}: give one for each of"
            " batch, KV head and held token"
        )


def _taken(states: Tensor, kept: Tensor) -> Tensor:
    return states.gather(-2, kept.unsqueeze(-1).expand(*kept.shape, states.shape[-1]))


def check_window(policy: KvPolicy) -> None:
    """Raise PolicyError for a window without a token: the next query would not see the last one."""
    at_least(1, policy, "window_tokens")
