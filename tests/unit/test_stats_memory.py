import ctypes
import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

from loadgen.stats.memory import GpuMemory, tree_use


class FakeNvml:
    """The driver's three calls, on GPUs that use `used` bytes (None: does not answer)."""

    def __init__(self, *used: int | None) -> None:
        self.used = used

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.used)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: Any) -> int:
        device._obj.value = index.value + 1
        return 0 if self.used[index.value] is not None else 9

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.used = self.used[(device.value or 0) - 1]
        return 0


@pytest.mark.parametrize(
    ("used", "expected"),
    [((3_000_000,), 3.0), ((1_000_000, None, 2_500_000), 3.5), ((None,), None), ((), None)],
)
def test_gpu_memory_is_summed_over_the_gpus_that_answer(
    used: tuple[int | None, ...], expected: float | None
) -> None:
    assert GpuMemory(FakeNvml(*used)).used_mb() == expected


def test_a_machine_without_the_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert GpuMemory.open() is None


def test_descendants_count_and_a_process_gone_is_unknown() -> None:
    wait = "import sys; print(flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])"
    argv = [sys.executable, "-c", parent]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        both = tree_use(process.pid)
        alone = psutil.Process(process.pid).memory_info().rss / 1_000_000
        ours = tree_use(os.getpid())
        process.communicate()
    assert both is not None
    assert both.rss_mb > alone + 3  # the child is an interpreter too
    assert ours is not None
    assert ours.rss_mb > both.rss_mb
    assert tree_use(process.pid) is None


def test_cpu_time_of_descendants_counts_and_stays_when_they_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    wait = "print(flush=True); sys.stdin.read()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); {wait}"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        use = tree_use(process.pid)
        own = psutil.Process(process.pid).cpu_times()
        process.communicate()
    assert use is not None
    assert use.cpu_s >= own.user + 0.15
