"""An inverse-softmax lottery."""

import math
import random
from collections.abc import Mapping

from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes


class Lottery(LinkScheduler):
    """A draw with weights exp(-share of all that waits).

    A share is between 0 and 1, so that no client's weight is over e times another's: many heavy
    clients together keep nearly all of the link.
    """

    name = "lottery"

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        pieces = sum(each.pieces for each in waiting.values())
        weights = [math.exp(-each.pieces / pieces) for each in waiting.values()]
        return self._random.choices([*waiting], weights)[0]
