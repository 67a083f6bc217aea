"""The packings that we know, against the kernels of vLLM that do the packing."""

import numpy as np
import pytest
from packed_chunks import random_kv

from kv_reading.kv import Kv, KvShape
from kv_reading.layout import Layout, decode

pytestmark = pytest.mark.engine
HEADS, TOKENS, DIM = 2, 128, 64


@pytest.mark.parametrize(("isa", "packing"), [("amx", "amx"), ("vec", "vec")])
def test_what_a_kernel_packs_comes_back(isa: str, packing: str) -> None:
    torch = pytest.importorskip("torch")
    ops = pytest.importorskip("vllm._custom_ops")
    if isa == "amx" and not torch.cpu._is_amx_tile_supported():
        pytest.skip("this processor has no AMX")
    kv = random_kv(1, HEADS, TOKENS, DIM)
    rows = [
        torch.from_numpy(each[0]).transpose(0, 1).to(torch.bfloat16).contiguous()
        for each in (kv.keys, kv.values)
    ]
    cache = torch.zeros((1, HEADS, 2 * TOKENS, DIM), dtype=torch.bfloat16)
    try:
        ops.cpu_attn_reshape_and_cache(*rows, *cache.chunk(2, dim=2), torch.arange(TOKENS), isa)
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"this vLLM has no such kernel: {error}")
    # As LMCache copies a block: by token, then by head.
    content = cache.view(HEADS, TOKENS, 2 * DIM).transpose(0, 1).contiguous()
    halves = content.view(torch.int16).numpy().astype("<i2").tobytes()
    found: Kv = decode(halves, KvShape(1, HEADS, DIM), Layout(packing, "bfloat16", TOKENS))
    assert np.array_equal(found.keys, kv.keys)
    assert np.array_equal(found.values, kv.values)
