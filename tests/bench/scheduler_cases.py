"""What is measured on the real engine: which batches, on which engines, in which arms."""

from dataclasses import dataclass, replace

from scheduler_batches import Batch
from scheduler_servers import STOCK, EngineSetup

REPEATS, SIDE_REPEATS, QUICK_REPEATS = 5, 3, 3


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve a batch: a server's policy, and whether requests carry their context."""

    name: str
    policy: str
    labelled: bool = True


STOCK_ARM = Arm("stock", STOCK)
LPM = Arm("lpm", "lpm")
LPM_UNLABELLED = Arm("lpm, no labels", "lpm", labelled=False)
PREFIX_GROUP = Arm("prefix-group", "prefix-group")
STANDARD = Batch()
ALL_ARMS = (STOCK_ARM, LPM, LPM_UNLABELLED, PREFIX_GROUP)
TWO_ARMS = (STOCK_ARM, LPM)


@dataclass(frozen=True, slots=True)
class Case:
    """One batch on one set-up, served by each arm in turn `repeats` times.

    With `warm`, every context was served once since the caches were emptied.
    """

    title: str
    setup: EngineSetup
    batch: Batch = STANDARD
    arms: tuple[Arm, ...] = TWO_ARMS
    repeats: int = SIDE_REPEATS
    warm: bool = False

    def turns(self) -> list[tuple[int, Arm]]:
        """Repeats from 1 on and their arms, each arm first as often as any other."""
        return turns(self.arms, self.repeats)


def turns(arms: tuple[Arm, ...], repeats: int) -> list[tuple[int, Arm]]:
    """Repeats from 1 on and their arms, each arm first as often as any other."""
    count = len(arms)
    return [
        (repeat + 1, arms[(repeat + place) % count])
        for repeat in range(repeats)
        for place in range(count)
    ]


@dataclass(frozen=True, slots=True)
class OneEngineCase:
    """One batch on the engine that all arms share, with so many usable blocks of cache.

    It is sent in the order that `fixed_order` draws, or, if that is None, in another one in each
    repeat, the same for all arms.
    """

    title: str
    blocks: int
    repeats: int
    batch: Batch = STANDARD
    arms: tuple[Arm, ...] = ALL_ARMS
    fixed_order: int | None = None

    def order(self, repeat: int) -> int:
        """What `Batch.questions` is asked for."""
        return repeat if self.fixed_order is None else self.fixed_order

    def turns(self) -> list[tuple[int, Arm]]:
        """Repeats from 1 on and their arms, each arm first as often as any other."""
        return turns(self.arms, self.repeats)


CACHE_SIZES = (20, 40, 80, 158)
"""Usable blocks of 128 tokens; a context of 1600 tokens and its question fill 13 of them."""
ONE_ENGINE_REPEATS = {20: 5, 40: 5, 80: 11, 158: 15}
"""More where less is to be told apart."""
HARD_ORDER = 1050
"""First come, first served computes 3.46, 2.56, 1.25 and 1.00 times the bound in this order."""


def size_title(blocks: int) -> str:
    """The title of the batch that the musts are about."""
    return f"{blocks} blocks"


def one_engine_cases(quick: bool = False) -> list[OneEngineCase]:
    """The batch that the musts are about at each size of the cache, and the same as it comes."""
    fixed = [
        OneEngineCase(size_title(size), size, repeats, fixed_order=HARD_ORDER)
        for size, repeats in ONE_ENGINE_REPEATS.items()
    ]
    if quick:
        return [replace(case, repeats=QUICK_REPEATS) for case in (fixed[0], fixed[-1])]
    drawn = [OneEngineCase(f"{size} blocks, any order", size, REPEATS) for size in CACHE_SIZES[:-1]]
    return fixed + drawn


def size_cases(blocks: tuple[int, ...] = CACHE_SIZES, repeats: int = SIDE_REPEATS) -> list[Case]:
    """The batch that the musts are about, through servers, at each size of the cache."""
    return [
        Case(size_title(size), EngineSetup(size), arms=ALL_ARMS, repeats=repeats) for size in blocks
    ]


def side_cases(repeats: int = SIDE_REPEATS) -> list[Case]:
    """Where it gains less, more or nothing."""
    small = EngineSetup(20)
    cases = [
        Case("batches of 12", small, Batch(per_context=2)),
        Case("batches of 72", small, Batch(per_context=12)),
        Case("no two on one context", small, Batch(contexts=36, per_context=1)),
        Case("at most 4 running", EngineSetup(20, max_num_seqs=4)),
        Case(
            "4 contexts of 4000 tokens, 40 blocks",
            EngineSetup(40),
            Batch(contexts=4, per_context=4, context_tokens=4000),
        ),
        Case("LMCache, empty", EngineSetup(20, l1_gb=1.0)),
        Case("LMCache with all contexts in it", EngineSetup(20, l1_gb=1.0), warm=True),
        Case("LMCache with room for 3 contexts", EngineSetup(20, l1_gb=0.02), warm=True),
    ]
    return [replace(case, repeats=repeats) for case in cases if repeats]


def all_cases(quick: bool, side_repeats: int = SIDE_REPEATS) -> list[Case]:
    """All batches through servers, or those on the smallest and the largest cache."""
    if quick:
        return size_cases((CACHE_SIZES[0], CACHE_SIZES[-1]), QUICK_REPEATS)
    return (size_cases(repeats=side_repeats) if side_repeats else []) + side_cases(side_repeats)
