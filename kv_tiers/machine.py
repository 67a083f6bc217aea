"""What the meaning of KV's bytes depends on beside the engine."""

import platform
from functools import cache

import torch


@cache
def instruction_set() -> str:
    """What the layout of KV in a CPU's memory depends on."""
    level = torch.backends.cpu.get_cpu_capability()
    amx = "-amx" if torch.cpu._is_amx_tile_supported() else ""
    return f"{platform.machine()}-{level}{amx}".lower().replace(" ", "-")
