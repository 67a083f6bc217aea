"""Policies that keep every token, in fewer bytes: the first and the last ones as they are, all
between them encoded, a block of tokens at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from kv_policies.policy import KeysValues, KvLayer, KvPolicy, ModelShape, PolicyError, tensors

BLOCK_TOKENS = 32
"""So many tokens are encoded together, or a multiple; until there are, the last ones wait as they
are. Scales of a channel are over so many."""


class Coded(ABC):
    """Encoded keys or values of a run of tokens."""

    @abstractmethod
    def decoded(self) -> Tensor:
        """[batch, KV heads, tokens, head dim] in the model's own type."""

    @abstractmethod
    def held(self) -> Iterable[Tensor]:
        """All tensors that this consists of."""


@dataclass(frozen=True, slots=True)
class Part:
    """Whose states are to be encoded: keys or values of a layer, and their first block, None where
    this is the first."""

    is_keys: bool
    layer: int
    first: Coded | None


class CodedPolicy(KvPolicy):
    """A policy of one method, `encode`; the fields `first_tokens` and `recent_tokens` stay as they
    are. A pass reads its own tokens exactly; those before it are read as they were encoded."""

    is_exact_in_pass = True
    first_tokens: int = 4
    recent_tokens: int = 64

    @abstractmethod
    def encode(self, states: Tensor, part: Part) -> Coded:
        """Of [batch, KV heads, tokens, head dim], tokens a multiple of `BLOCK_TOKENS`."""

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        return _CodedLayer(self, index)


class BlockLayer(KvLayer):
    """First tokens, encoded blocks, last tokens."""

    def __init__(self, first_tokens: int, recent_tokens: int) -> None:
        super().__init__()
        self._first_tokens, self._recent_tokens = first_tokens, recent_tokens
        self.first: KeysValues | None = None
        self.last: KeysValues | None = None
        self.blocks: list[tuple[Coded, Coded]] = []

    def append(self, new: KeysValues) -> KeysValues:
        before = [each for each in (self.first, *self._decoded(), self.last) if each is not None]
        read = before[0].then(*before[1:], new) if before else new
        self.last = new if self.last is None else self.last.then(new)
        self._keep_first()
        if due := self._due_tokens():
            self.encode(due)
        return read

    def held(self) -> Iterable[Tensor]:
        yield from tensors(self.first, self.last)
        for pair in self.blocks:
            for coded in pair:
                yield from coded.held()

    @property
    def held_tokens(self) -> int:
        return self.seen_tokens

    @abstractmethod
    def encode(self, tokens: int) -> None:
        """Move so many from the beginning of the last tokens into a block."""

    def drop(self, tokens: int) -> KeysValues:
        """Take so many from the beginning of the last tokens."""
        assert self.last is not None
        due, self.last = self.last.part(0, tokens), self.last.part(tokens)
        return due

    def _keep_first(self) -> None:
        have = 0 if self.first is None else self.first.tokens
        assert self.last is not None
        if missing := min(self._first_tokens - have, self.last.tokens):
            more = self.drop(missing)
            self.first = more if self.first is None else self.first.then(more)

    def _due_tokens(self) -> int:
        assert self.last is not None
        return max(0, self.last.tokens - self._recent_tokens) // BLOCK_TOKENS * BLOCK_TOKENS

    def _decoded(self) -> Iterable[KeysValues]:
        return (KeysValues(keys.decoded(), values.decoded()) for keys, values in self.blocks)


class _CodedLayer(BlockLayer):
    def __init__(self, policy: CodedPolicy, index: int) -> None:
        super().__init__(policy.first_tokens, policy.recent_tokens)
        self._policy, self._index = policy, index

    def encode(self, tokens: int) -> None:
        due = self.drop(tokens)
        firsts = self.blocks[0] if self.blocks else (None, None)
        keys, values = (
            self._policy.encode(states, Part(is_keys, self._index, first))
            for states, is_keys, first in zip(due, (True, False), firsts, strict=True)
        )
        if not self.blocks:
            _check(self._policy, keys, due.keys)
            _check(self._policy, values, due.values)
        self.blocks.append((keys, values))


def _check(policy: CodedPolicy, coded: object, states: Tensor) -> None:
    """Raise PolicyError for a policy that does not give back what it was given."""
    if not isinstance(coded, Coded):
        raise PolicyError(f"{policy.label}: encode returns {type(coded).__name__}: give a Coded")
    back = coded.decoded()
    if back.shape != states.shape or back.dtype != states.dtype:
        found, wanted = ((*each.shape, str(each.dtype)) for each in (back, states))
        raise PolicyError(f"{policy.label}: decoded states are {found}, not {wanted}")
