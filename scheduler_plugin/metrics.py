"""The plugin's metrics on vLLM's own `/metrics`, which never disturb its serving."""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from scheduler_plugin.engine_view import Contexts, Nobody, Reason, Watcher
from scheduler_plugin.exposition import DIRECTORY, Exposition, reaches_metrics
from scheduler_plugin.tally import AdmissionTally

P = ParamSpec("P")
LOGGER = logging.getLogger("vllm.context_scheduler")
FLUSH_EVERY_S = 0.25


def _harmless(
    method: Callable[Concatenate["SchedulerMetrics", P], None],
) -> Callable[Concatenate["SchedulerMetrics", P], None]:
    """A method whose first error ends the metrics, and nothing else."""

    @wraps(method)
    def call(metrics: "SchedulerMetrics", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(metrics, *args, **kwargs)
        except Exception:
            metrics.give_up()

    return call


class SchedulerMetrics:
    """Watches a queue and writes down what it saw.

    Counting is plain Python; Prometheus is told every `FLUSH_EVERY_S` and when the engine has run
    out of requests, as nobody would ask again afterwards.
    """

    def __init__(
        self,
        exposition: Exposition,
        is_running: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exposition = exposition
        self._is_running = is_running
        self._now_s = now_s
        self._due_s = 0.0
        self._waiting = 0
        self._tally: AdmissionTally | Nobody = AdmissionTally()

    @_harmless
    def arrived(self, is_labelled: bool) -> None:
        """A new request came."""
        self._tally.arrived(is_labelled)

    @_harmless
    def chosen(self, seconds: float) -> None:
        """It took so long to choose the context of a turn."""
        self._tally.chosen(seconds)

    @_harmless
    def turn_began(self, reason: Reason) -> None:
        """A turn began."""
        self._tally.turn_began(reason)

    @_harmless
    def turn_ended(self, admitted: int) -> None:
        """A turn ended after so many requests."""
        self._tally.turn_ended(admitted)

    @_harmless
    def admitted(self, request: Any, waited_s: float, overtakes_max: int) -> None:
        """A request was admitted."""
        self._tally.admitted(request, waited_s, overtakes_max)

    @_harmless
    def looked(self, requests: int, waiting: Contexts) -> None:
        """Tell Prometheus if it is time and something happened."""
        tally = self._tally
        if isinstance(tally, Nobody) or (tally.is_empty and requests == self._waiting):
            return
        now_s = self._now_s()
        if now_s < self._due_s and (requests or self._is_running()):
            return
        self._due_s = now_s + FLUSH_EVERY_S
        self._waiting = requests
        self._tell(tally, requests, waiting.contexts)

    @_harmless
    def failed(self) -> None:
        """Tell Prometheus the last of it."""
        self._exposition.active.set(0)
        tally, self._tally = self._tally, Nobody()
        if isinstance(tally, AdmissionTally):
            self._tell(tally, 0, 0)

    def _tell(self, tally: AdmissionTally, requests: int, contexts: int) -> None:
        self._exposition.add(tally)
        self._exposition.set_waiting(requests, contexts)
        tally.clear()

    def give_up(self) -> None:
        """Called while an error is handled: say so, and watch no more."""
        self._tally = Nobody()
        LOGGER.exception("the context scheduler's metrics failed and are off; serving goes on")


def make_watcher(scheduler: Any, is_active: bool) -> Watcher[Any]:
    """The metrics of a vLLM scheduler, or nobody where they would not reach `/metrics`."""
    if not scheduler.log_stats:
        return Nobody()
    if not reaches_metrics():
        LOGGER.warning(
            "the context scheduler's metrics are not on /metrics: set %s to an empty directory"
            " before the server starts",
            DIRECTORY,
        )
        return Nobody()
    exposition = Exposition(str(scheduler.vllm_config.parallel_config.data_parallel_index))
    if not is_active:
        return Nobody()
    exposition.open()
    exposition.active.set(1)
    return SchedulerMetrics(exposition, lambda: bool(scheduler.running))
