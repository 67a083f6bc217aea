"""What happened in the queue since it was last written down, counted in plain Python."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from scheduler_plugin.engine_view import Contexts, Reason

WAIT_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
SELECTION_BOUNDS_S = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
TURN_BOUNDS_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REASONS: tuple[Reason, ...] = ("oldest", "resident", "overtakes", "wait")


class Spread:
    """Values by bucket: `counts[i]` of them are at most `bounds[i]`, the last has the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.clear()

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def clear(self) -> None:
        """Begin anew."""
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0


class AdmissionTally:
    """Watches a queue of vLLM requests. All but `overtakes_max` counts from the last `clear` on."""

    def __init__(self) -> None:
        self.wait_s = Spread(WAIT_BOUNDS_S)
        self.selection_s = Spread(SELECTION_BOUNDS_S)
        self.turn_requests = Spread(TURN_BOUNDS_REQUESTS)
        self.overtakes_max = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        for spread in (self.wait_s, self.selection_s, self.turn_requests):
            spread.clear()
        self.turns = dict.fromkeys(REASONS, 0)
        self.resident_tokens = 0
        self.cold_tokens = 0
        self.unlabelled = 0
        self.is_empty = True

    def arrived(self, is_labelled: bool) -> None:
        """A new request came."""
        self.is_empty = False
        if not is_labelled:
            self.unlabelled += 1

    def chosen(self, seconds: float) -> None:
        """It took so long to choose the context of a turn."""
        self.selection_s.add(seconds)

    def turn_began(self, reason: Reason) -> None:
        """A turn began."""
        self.turns[reason] += 1

    def turn_ended(self, admitted: int) -> None:
        """A turn ended after so many requests."""
        self.turn_requests.add(admitted)

    def admitted(self, request: Any, waited_s: float, overtakes_max: int) -> None:
        """A request was admitted; what vLLM found of it in caches is then its computed part."""
        self.is_empty = False
        if overtakes_max > self.overtakes_max:
            self.overtakes_max = overtakes_max
        self.wait_s.add(waited_s)
        resident = min(request.num_computed_tokens, request.num_prompt_tokens)
        self.resident_tokens += resident
        self.cold_tokens += request.num_prompt_tokens - resident

    def looked(self, requests: int, waiting: Contexts) -> None:
        """Changes nothing."""

    def failed(self) -> None:
        """Changes nothing."""
