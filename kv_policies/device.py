"""What is computed on: its name, a clock that waits for it, and the high-water mark of memory."""

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MEMINFO, AVAILABLE = Path("/proc/meminfo"), "MemAvailable:"
RESET_PEAK = "5"
PEAK, NOW = "VmHWM:", "VmRSS:"

T = TypeVar("T")


def device_named(name: str | None = None) -> torch.device:
    """The one named, else a GPU where there is one."""
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def device_name(device: torch.device) -> str:
    """`cpu`, or what a GPU calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def clock_s(device: torch.device) -> float:
    """Seconds of a clock that waits for what the device still computes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reset_peak(device: torch.device) -> bool:
    """Begin a new high-water mark of memory; False where the system cannot."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes(device: torch.device) -> int | None:
    """Of the device, else of this process, since `reset_peak`; None where nobody counts it."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _kilobytes(STATUS, PEAK)


def used_bytes(device: torch.device) -> int | None:
    """Of the device, else of this process, now."""
    return (
        int(torch.cuda.memory_allocated(device))
        if device.type == "cuda"
        else _kilobytes(STATUS, NOW)
    )


def free_bytes(device: torch.device) -> int | None:
    """What may still be allocated on the device, else on this machine; None where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _kilobytes(MEMINFO, AVAILABLE)


def peak_of(device: torch.device, call: Callable[[], T]) -> tuple[T, int | None]:
    """What the call returns, and the bytes that it took beside those held before; None where
    nobody counts them from then on."""
    _give_back(device)
    before = used_bytes(device)
    is_counted = reset_peak(device)
    found = call()
    clock_s(device)
    most = peak_bytes(device) if is_counted else None
    return found, None if before is None or most is None else max(0, most - before)


def _give_back(device: torch.device) -> None:
    """What an earlier call has freed, which the C library else keeps and hands out again unseen."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def seconds_of(device: torch.device, call: Callable[[], object]) -> float:
    """How long one call takes."""
    since_s = clock_s(device)
    call()
    return clock_s(device) - since_s


def _kilobytes(file: Path, field: str) -> int | None:
    """In bytes."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(field)]
    return 1024 * int(found[0]) if found else None
