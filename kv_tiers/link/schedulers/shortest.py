"""The shortest queue first."""

from collections.abc import Mapping

from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes


class ShortestFirst(LinkScheduler):
    """The client with the fewest bytes: the shortest mean wait, and none at all for the largest
    while smaller ones keep coming."""

    name = "shortest"

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        return min(waiting, key=lambda each: (waiting[each].all_bytes, waiting[each].arrival))
