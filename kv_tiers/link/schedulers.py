"""Whose bytes go over a link next, where several clients wait for it.

A scheduler has one method. It sees, for each client that waits, what waits, and names one; what is
at the head of that client's queue is then sent whole.
"""

import math
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

QUANTUM_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class WaitingBytes:
    """A client's queue, which is not empty: bytes at its head and in all of it, the pieces they are
    in, and the number of its first piece in the order of arrival at the link."""

    head_bytes: int
    all_bytes: int
    pieces: int
    arrival: int


class LinkScheduler(ABC):
    """A subclass has this method and a name; it may keep what it likes between calls."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        """The client whose head is sent; someone waits."""


class Fifo(LinkScheduler):
    """First come, first served: a client gets of the link what it throws at it."""

    name = "fifo"

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        return min(waiting, key=lambda client: waiting[client].arrival)


@dataclass
class DeficitRoundRobin(LinkScheduler):
    """In turns, with as many bytes for everyone (Shreedhar and Varghese, 1995).

    Who waits is served once all others have had a quantum, and a piece, at most.
    """

    name = "drr"
    quantum_bytes: int = QUANTUM_BYTES
    _turns: deque[str] = field(default_factory=deque)
    _credit: dict[str, int] = field(default_factory=dict)

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        for client in [client for client in self._turns if client not in waiting]:
            self._turns.remove(client)
            del self._credit[client]
        for client in waiting:
            if client not in self._credit:
                self._turns.append(client)
                self._credit[client] = 0
        while self._credit[self._turns[0]] < waiting[self._turns[0]].head_bytes:
            self._turns.rotate(-1)
            self._credit[self._turns[0]] += self.quantum_bytes
        client = self._turns[0]
        self._credit[client] -= waiting[client].head_bytes
        return client


class ShortestFirst(LinkScheduler):
    """The client with the fewest bytes: the shortest mean wait, and none at all for the largest
    while smaller ones keep coming."""

    name = "shortest"

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        return min(waiting, key=lambda each: (waiting[each].all_bytes, waiting[each].arrival))


class Lottery(LinkScheduler):
    """A draw with weights exp(-share of all that waits).

    A share is between 0 and 1, so that no client's weight is over e times another's: many heavy
    clients together keep nearly all of the link.
    """

    name = "lottery"

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        pieces = sum(each.pieces for each in waiting.values())
        weights = [math.exp(-each.pieces / pieces) for each in waiting.values()]
        return self._random.choices([*waiting], weights)[0]


SCHEDULERS: Mapping[str, Callable[[], LinkScheduler]] = {
    each.name: each for each in (Fifo, DeficitRoundRobin, ShortestFirst, Lottery)
}
