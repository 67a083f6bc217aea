"""How busy others keep the machine while something is measured."""

import os
import time

import psutil


class CpuWatch:
    """How much of the machine others use, from its making on."""

    def __init__(self) -> None:
        self._at, self._busy_s, self._own_s = time.perf_counter(), _busy_s(), _own_s()

    def others(self) -> float:
        """Their share of all cores, 0 to 1, time stolen from this machine included."""
        elapsed_s = (time.perf_counter() - self._at) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return max(0.0, others_s / elapsed_s)


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(value for name, value in times._asdict().items() if name not in idle))


def _own_s() -> float:
    """CPU seconds of this process and all below it; none of them ends during a batch."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return total
