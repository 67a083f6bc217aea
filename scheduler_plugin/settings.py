"""What a user may choose about the order of waiting requests."""

from dataclasses import dataclass
from typing import Literal, get_args

Policy = Literal["fcfs", "prefix-group", "lpm"]
Key = Literal["auto", "label", "prefix"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
KEYS: tuple[Key, ...] = get_args(Key)


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How the next waiting request is chosen.

    `quantum` is the most requests of one context in a turn, `max_overtakes` and `max_wait_s` make
    the oldest request overdue, `window` is how many groups are looked at, and below `min_kv_usage`
    (0 to 1, the share of KV blocks in use) the order is first come, first served.
    """

    policy: Policy = "lpm"
    key: Key = "auto"
    quantum: int = 32
    max_overtakes: int = 64
    max_wait_s: float | None = None
    window: int = 64
    min_kv_usage: float = 0.0
    strict: bool = False
