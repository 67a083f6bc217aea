"""Schedulers of a link, a file each, by name."""

from collections.abc import Callable, Mapping

from kv_tiers.link.schedulers.drr import DeficitRoundRobin
from kv_tiers.link.schedulers.fifo import Fifo
from kv_tiers.link.schedulers.lottery import Lottery
from kv_tiers.link.schedulers.scheduler import LinkScheduler
from kv_tiers.link.schedulers.shortest import ShortestFirst

SCHEDULERS: Mapping[str, Callable[[], LinkScheduler]] = {
    each.name: each for each in (Fifo, DeficitRoundRobin, ShortestFirst, Lottery)
}
