"""What the master decides at the start of a swarm, and the names of messages with its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PLAN = "kvswarm_plan"
DELTA = "kvswarm_delta"
DRAIN = "kvswarm_drain"
SPENT = "kvswarm_spent"
DRAINED = "kvswarm_drained"
FAILED = "kvswarm_failed"
"""A worker cannot do its part."""
CLOCK = "kvswarm_clock"
"""A worker asks for the master's time, and gets it."""
CLOCK_OFFSET = "kvswarm_clock_offset"


@dataclass(frozen=True, slots=True)
class Plan:
    """One swarm: when it starts, what host it loads, which share each process has.

    `workers` maps a Locust client id to its index; requests, or the batches of a `batched` swarm,
    are owned by index modulo the number of workers. `lengths` is the serialised measure of text
    lengths. `uncapped` is an open loop without a limit on what is in flight. `trace` is empty
    without one, else `Replay.to_wire`. `body` are fields that the target asks of every request.
    `user_classes` are weights by name.
    """

    start_unix_s: float
    url: str
    model: str
    is_vllm: bool
    options: Mapping[str, Any]
    workers: Mapping[str, int]
    lengths: Mapping[str, Any]
    uncapped: bool
    batched: bool
    trace: Mapping[str, Sequence[int]] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    corpus_sha256: str = ""
    user_classes: Mapping[str, float] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """A dict that Locust's messages can carry."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Plan":
        """The plan a master sent."""
        return cls(**wire)
