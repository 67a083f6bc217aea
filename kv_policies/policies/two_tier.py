"""A small fast tier and a large slow one, from which a query's blocks are fetched (as InfLLM: Xiao
et al., arXiv:2402.04617).

The fast tier has the first block, the last tokens, room for some blocks, and of each older block
the highest and the lowest value of each channel of its keys. These bound what any key of the block
can be worth to a query (Quest: Tang et al., arXiv:2406.10774); the blocks with the highest bounds
are read. A block that is there from the pass before is not moved again. On a GPU the slow tier is
host memory; on a CPU both are, and a move is a copy.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_policies.coding import BLOCK_TOKENS
from kv_policies.policy import (
    KeysValues,
    KvLayer,
    KvPolicy,
    ModelShape,
    PolicyError,
    Traffic,
    at_least,
    tensors,
)

SLOW = torch.device("cpu")
Places = tuple[Tensor, ...]


@dataclass(frozen=True)
class TwoTier(KvPolicy):
    name = "two-tier"
    summary = (
        f"the last tokens, and of older blocks of {BLOCK_TOKENS} so many as a query wants most"
    )
    fetches = True
    is_exact_in_pass = True

    window_tokens: int = 64
    fetched_blocks: int = 6

    def __post_init__(self) -> None:
        at_least(1, self, "window_tokens", "fetched_blocks")

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        return TwoTierLayer(self.window_tokens, self.fetched_blocks)


class TwoTierLayer(KvLayer):
    """`_slow` is [batch, KV heads, blocks, block tokens, head dim] of keys and of values, `_fast`
    the same with a place for each block that is there, `_there` [batch, KV heads, places] their
    numbers. `_high` and `_low` are [batch, KV heads, blocks, head dim]."""

    def __init__(self, window_tokens: int, places: int) -> None:
        super().__init__()
        self._window_tokens, self._places = window_tokens, places
        self._first: KeysValues | None = None
        self._last: KeysValues | None = None
        self._slow: KeysValues | None = None
        self._fast: KeysValues | None = None
        self._there: Tensor | None = None
        self._high: Tensor | None = None
        self._low: Tensor | None = None
        self._traffic = Traffic()

    def append(self, new: KeysValues) -> KeysValues:
        self._move_out()
        self._last = new if self._last is None else self._last.then(new)
        return self._last if self._first is None else self._first.then(self._last)

    def fetched(self, query: Tensor) -> KeysValues | None:
        if self._slow is None:
            return None
        if query.shape[2] > 1:
            raise PolicyError("two-tier: several queries fetch at once: pass a token at a time")
        wanted = self._wanted(query)
        self._fetch(wanted)
        assert self._fast is not None
        return KeysValues(*(each.flatten(2, 3) for each in self._fast))

    def held(self) -> Iterable[Tensor]:
        yield from tensors(self._first, self._last, self._fast)
        yield from (each for each in (self._there, self._high, self._low) if each is not None)

    def held_slowly(self) -> Iterable[Tensor]:
        return tensors(self._slow)

    @property
    def held_tokens(self) -> int:
        return sum(each.tokens for each in (self._first, self._last) if each is not None)

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def _move_out(self) -> None:
        """Whole blocks before the window: the first stays, the others leave for the slow tier."""
        last = self._last
        before = 0 if last is None else last.tokens - self._window_tokens
        due = before // BLOCK_TOKENS * BLOCK_TOKENS
        if last is None or due < BLOCK_TOKENS:
            return
        start = 0
        if self._first is None:
            self._first, start = last.part(0, BLOCK_TOKENS), BLOCK_TOKENS
        if due > start:
            self._store(last.part(start, due))
        self._last = last.part(due)

    def _store(self, moved: KeysValues) -> None:
        keys, values = (torch.unflatten(each, 2, (-1, BLOCK_TOKENS)) for each in moved)
        self._high = _joined(self._high, keys.amax(3))
        self._low = _joined(self._low, keys.amin(3))
        slow = KeysValues(keys.to(SLOW), values.to(SLOW))
        before = self._slow or (None, None)
        self._slow = KeysValues(*(_joined(*each) for each in zip(before, slow, strict=True)))

    def _wanted(self, query: Tensor) -> Tensor:
        """[batch, KV heads, places]: blocks by the most that any of their keys can be worth to
        the query, over the heads that share the KV head."""
        assert self._high is not None
        assert self._low is not None
        heads = self._high.shape[1]
        grouped = torch.unflatten(query, 1, (heads, -1)).flatten(2, 3)
        above = grouped.clamp_min(0) @ self._high.transpose(-1, -2)
        below = grouped.clamp_max(0) @ self._low.transpose(-1, -2)
        bounds = (above + below).amax(2)
        return bounds.topk(min(self._places, bounds.shape[-1]), dim=-1).indices

    def _fetch(self, wanted: Tensor) -> None:
        """Into places whose block is not wanted, those that are wanted and not there."""
        there = self._made_room(wanted)
        is_same = wanted.unsqueeze(-1) == there.unsqueeze(-2)
        missing, free = ~is_same.any(-1), ~is_same.any(-2)
        texts, heads, _ = missing.nonzero(as_tuple=True)
        if not len(texts):
            return
        blocks = tuple(each.to(SLOW) for each in (texts, heads, wanted[missing]))
        self._move_in(blocks, free.nonzero(as_tuple=True))
        there[free] = wanted[missing]

    def _move_in(self, blocks: Places, places: Places) -> None:
        """Into places of the fast tier, each given by text, head and number, as many blocks."""
        self._traffic += self._moved(self._slowly, blocks, places)

    def _moved(
        self, read: Callable[[Places], KeysValues], blocks: Places, places: Places
    ) -> Traffic:
        since = time.perf_counter()
        assert self._fast is not None
        states = read(blocks)
        for fast, state in zip(self._fast, states, strict=True):
            fast[places] = state.to(fast.device)
        moved_bytes = sum(each.nbytes for each in states)
        return Traffic(len(blocks[0]), moved_bytes, time.perf_counter() - since)

    def _slowly(self, blocks: Places) -> KeysValues:
        """[blocks, block tokens, head dim] of the slow tier."""
        assert self._slow is not None
        return KeysValues(*(each[blocks] for each in self._slow))

    def _made_room(self, wanted: Tensor) -> Tensor:
        """The numbers of the blocks that are there, -1 in places that are empty."""
        assert self._slow is not None
        known = 0 if self._there is None else self._there.shape[-1]
        if more := wanted.shape[-1] - known:
            empty = torch.full_like(wanted[..., :more], -1)
            self._there = _joined(self._there, empty)
            sizes = (*empty.shape, *self._slow.keys.shape[3:])
            rooms = (each.new_zeros(sizes, device=wanted.device) for each in self._slow)
            fast = self._fast or (None, None)
            self._fast = KeysValues(*(_joined(*each) for each in zip(fast, rooms, strict=True)))
        assert self._there is not None
        return self._there


def _joined(before: Tensor | None, after: Tensor) -> Tensor:
    return after if before is None else torch.cat([before, after], dim=2)
