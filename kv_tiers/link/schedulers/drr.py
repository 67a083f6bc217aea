"""Deficit round robin."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes

QUANTUM_BYTES = 16_384


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
