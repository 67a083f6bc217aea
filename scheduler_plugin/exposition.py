"""The metrics as Prometheus knows them, in the files that vLLM's `/metrics` adds up."""

import os
from functools import cache
from typing import Any

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from scheduler_plugin.tally import (
    REASONS,
    SELECTION_BOUNDS_S,
    TURN_BOUNDS_REQUESTS,
    WAIT_BOUNDS_S,
    AdmissionTally,
    Spread,
)

PREFIX = "vllm:context_scheduler_"
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def reaches_metrics() -> bool:
    """Whether what this process counts is seen by the process that serves `/metrics`.

    prometheus_client decides when it is imported, so the directory must be set before that.
    """
    values = prometheus_client.values
    return bool(os.environ.get(DIRECTORY)) and values.ValueClass is not values.MutexValue


class Exposition:
    """The metrics of one engine, which is their only label of that kind.

    They are in no registry: the files alone lead to `/metrics`. Raises OSError where the files
    cannot be made.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self.active = self._gauge("active", "1 while waiting requests are ordered by context.")

    def open(self) -> None:
        """Make what only an active queue has, so that all of it begins at 0."""
        self._requests = self._gauge("waiting_requests", "Requests that wait.")
        self._contexts = self._gauge(
            "waiting_contexts",
            "Groups of waiting requests that begin alike, as far as the policy knows.",
        )
        self._overtakes = self._gauge(
            "overtakes_max", "How often any request was overtaken by younger ones, since the start."
        )
        turns = self._counter("turns", "Turns of a context, by why each was next.", "reason")
        self._turns = {reason: turns.labels(self._engine, reason) for reason in REASONS}
        tokens = self._counter(
            "prompt_tokens", "Prompt tokens admitted, resident in a cache or cold.", "state"
        )
        self._resident = tokens.labels(self._engine, "resident")
        self._cold = tokens.labels(self._engine, "cold")
        self._unlabelled = self._counter(
            "unlabelled_requests", "Requests that named neither context nor session."
        ).labels(self._engine)
        self._turn_requests = self._histogram(
            "turn_requests", "Requests of a turn.", TURN_BOUNDS_REQUESTS
        )
        self._wait_s = self._histogram(
            "queue_wait_seconds", "How long requests waited.", WAIT_BOUNDS_S
        )
        self._selection_s = self._histogram(
            "selection_seconds",
            "How long it took to choose whose turn is next.",
            SELECTION_BOUNDS_S,
        )

    def add(self, tally: AdmissionTally) -> None:
        """Add what was counted."""
        for reason, turns in tally.turns.items():
            _add(self._turns[reason], turns)
        _add(self._resident, tally.resident_tokens)
        _add(self._cold, tally.cold_tokens)
        _add(self._unlabelled, tally.unlabelled)
        _add_spread(self._turn_requests, tally.turn_requests)
        _add_spread(self._wait_s, tally.wait_s)
        _add_spread(self._selection_s, tally.selection_s)
        self._overtakes.set(tally.overtakes_max)

    def set_waiting(self, requests: int, contexts: int) -> None:
        """What waits now."""
        self._requests.set(requests)
        self._contexts.set(contexts)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter: Counter = _metric(Counter, name, text, *labels)
        return counter

    def _gauge(self, name: str, text: str) -> Gauge:
        # `mostrecent` drops the label of the process that the other modes add.
        made: Gauge = _metric(Gauge, name, text, multiprocess_mode="mostrecent")
        gauge = made.labels(self._engine)
        gauge.set(0)
        return gauge

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        made: Histogram = _metric(Histogram, name, text, buckets=bounds)
        return made.labels(self._engine)


@cache
def _metric(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
    """One of a kind in a process: of two that write the same file each would undo the other's."""
    return kind(PREFIX + name, text, ["engine", *labels], registry=None, **more)


def _add(counter: Counter, amount: int) -> None:
    if amount:
        counter.inc(amount)


def _add_spread(histogram: Histogram, spread: Spread) -> None:
    """Add whole buckets: `observe` takes one value a call, at about 2 us in each admission."""
    for bucket, count in zip(histogram._buckets, spread.counts, strict=True):
        if count:
            bucket.inc(count)
    if spread.total:
        histogram._sum.inc(spread.total)
