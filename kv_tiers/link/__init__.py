"""A scarce link, shared by clients of a store: `kvswarm kv link` is this on the command line."""

from kv_tiers.link.proxy import LinkProxy, LinkSettings
from kv_tiers.link.rate import RateSchedule, TokenBucket
from kv_tiers.link.report import ClientFigures, LinkReport, jain_index
from kv_tiers.link.schedulers import SCHEDULERS
from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes

__all__ = [
    "SCHEDULERS",
    "ClientFigures",
    "LinkProxy",
    "LinkReport",
    "LinkScheduler",
    "LinkSettings",
    "RateSchedule",
    "TokenBucket",
    "WaitingBytes",
    "jain_index",
]
