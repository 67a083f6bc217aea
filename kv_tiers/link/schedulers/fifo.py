"""First come, first served."""

from collections.abc import Mapping

from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes


class Fifo(LinkScheduler):
    """First come, first served: a client gets of the link what it throws at it."""

    name = "fifo"

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        return min(waiting, key=lambda client: waiting[client].arrival)
