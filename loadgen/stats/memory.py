"""What processes use of this machine, and the memory of its GPUs. 1 MB is 1,000,000 bytes."""

import ctypes
from contextlib import suppress
from typing import Any, NamedTuple, Self

import psutil

MB = 1_000_000


class TreeUse(NamedTuple):
    """Resident memory, and CPU time (user and system) since the start."""

    rss_mb: float
    cpu_s: float


def tree_use(pid: int) -> TreeUse | None:
    """Of a process and all its descendants; None when it has gone.

    Pages shared between them count once for each. A child that has exited is in the CPU time of
    whoever waited for it.
    """
    rss, cpu_s = 0, 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():
                rss += process.memory_info().rss
                times = process.cpu_times()
                cpu_s += times.user + times.system + times.children_user + times.children_system
    return TreeUse(rss / MB, cpu_s) if rss else None


class _NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class GpuMemory:
    """Memory in use on all NVIDIA GPUs, read through the driver's own library.

    A library call, because starting `nvidia-smi` needs child processes and their signals, which
    belong to gevent inside Locust. Open it in the process that reads.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    @classmethod
    def open(cls) -> Self | None:
        """The GPUs of this machine, None when it has none or no driver."""
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            return cls(nvml) if nvml.nvmlInit_v2() == 0 else None
        except (OSError, AttributeError):
            return None

    def used_mb(self) -> float | None:
        """Memory in use, summed over the GPUs; None when the driver does not say."""
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
            return None
        used = [self._used_bytes(index) for index in range(count.value)]
        known = [number for number in used if number is not None]
        return sum(known) / MB if known else None

    def _used_bytes(self, index: int) -> int | None:
        device, memory = ctypes.c_void_p(), _NvmlMemory()
        if self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
            return None
        if self._nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
        return int(memory.used)
