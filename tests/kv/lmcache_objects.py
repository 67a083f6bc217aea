"""Memory and keys of LMCache's own kind, and what its controllers do with an adapter's tasks."""

import select
from collections.abc import Callable
from typing import Any

import numpy as np

from kv_tiers.codecs import to_bits

SHAPE, CHUNKS = (2, 16, 64), 6
SIZE = 2 * 2 * 16 * 64


def content(seed: int) -> bytes:
    """Of a chunk."""
    values = np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)
    return to_bits(values).tobytes()


class Objects:
    """Memory of LMCache's own kind, and keys of one context."""

    def __init__(self, dtype: str = "bfloat16") -> None:
        import torch
        from lmcache.v1.distributed.api import ObjectKey
        from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj

        self.keys = [ObjectKey(bytes([at]) * 32, "model", 0) for at in range(CHUNKS)]
        self.buffers = [
            TensorMemoryObj(
                torch.zeros(SIZE, dtype=torch.uint8),
                MemoryObjMetadata(torch.Size(SHAPE), getattr(torch, dtype), 0, SIZE, 1),
                None,
            )
            for _ in range(CHUNKS)
        ]

    def fill(self) -> None:
        for at, buffer in enumerate(self.buffers):
            memoryview(buffer.byte_array).cast("B")[:] = content(at)

    @property
    def contents(self) -> list[bytes]:
        return [bytes(buffer.byte_array) for buffer in self.buffers]


def result(descriptor: int, query: Callable[[], Any]) -> Any:
    """What LMCache's controllers do: wait for the notice, take it, then ask."""
    from lmcache.v1.platform import consume_fd

    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(20_000), "no notice"
    consume_fd(descriptor)
    found = query()
    assert found is not None
    return found


def bits(bitmap: Any) -> list[int]:
    return [at for at in range(CHUNKS) if bitmap.test(at)]
