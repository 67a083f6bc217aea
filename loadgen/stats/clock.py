"""A run's time: seconds since `start_unix_s`, the same in every process of a swarm."""

import time


class RunClock:
    """Turns this process's `time.perf_counter()` readings into seconds since `start_unix_s`.

    The offset between the two clocks is measured once, so that a wall clock set during the run
    moves nothing.
    """

    __slots__ = ("_start_perf_s", "start_unix_s")

    def __init__(self, start_unix_s: float) -> None:
        self.start_unix_s = start_unix_s
        before_s = time.perf_counter()
        unix_s = time.time()
        middle_s = (before_s + time.perf_counter()) / 2
        self._start_perf_s = middle_s - (unix_s - start_unix_s)

    def to_run_s(self, perf_counter_s: float) -> float:
        """Seconds since the run's start at a `perf_counter()` reading; negative before it."""
        return perf_counter_s - self._start_perf_s

    def to_perf(self, run_s: float) -> float:
        """The `perf_counter()` reading at `run_s`."""
        return run_s + self._start_perf_s

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.perf_counter() - self._start_perf_s
