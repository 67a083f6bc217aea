"""A run's time: seconds since `start_unix_s`, the same in every process of a swarm."""

import time

READINGS = 5


class RunClock:
    """Turns this process's `time.perf_counter()` readings into seconds since `start_unix_s`.

    The offset between the two clocks is measured at the start, so that a wall clock set during the
    run moves nothing, and by the closest of some readings: a process may be set aside between two.
    """

    __slots__ = ("_start_perf_s", "start_unix_s")

    def __init__(self, start_unix_s: float) -> None:
        self.start_unix_s = start_unix_s
        _, offset_s = min(_reading() for _ in range(READINGS))
        self._start_perf_s = offset_s + start_unix_s

    def to_run_s(self, perf_counter_s: float) -> float:
        """Seconds since the run's start at a `perf_counter()` reading; negative before it."""
        return perf_counter_s - self._start_perf_s

    def to_perf(self, run_s: float) -> float:
        """The `perf_counter()` reading at `run_s`."""
        return run_s + self._start_perf_s

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.perf_counter() - self._start_perf_s


def _reading() -> tuple[float, float]:
    """How long it took, and what lay between the two clocks, in seconds."""
    before_s = time.perf_counter()
    unix_s = time.time()
    took_s = time.perf_counter() - before_s
    return took_s, before_s + took_s / 2 - unix_s
