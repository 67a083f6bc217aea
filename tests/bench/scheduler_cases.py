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
REUSE = Arm("reuse", "reuse")
LPM = Arm("lpm", "lpm")
LPM_UNLABELLED = Arm("lpm, no labels", "lpm", labelled=False)
STANDARD = Batch()
ALL_ARMS = (STOCK_ARM, REUSE, LPM, LPM_UNLABELLED)
TWO_ARMS = (STOCK_ARM, REUSE)


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
    repeat, the same for all arms. `max_num_seqs` None leaves vLLM's default.
    """

    title: str
    blocks: int
    repeats: int
    batch: Batch = STANDARD
    arms: tuple[Arm, ...] = ALL_ARMS
    fixed_order: int | None = None
    max_num_seqs: int | None = None

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
    return fixed + drawn + side_cases()


def side_cases() -> list[OneEngineCase]:
    """Where it gains less, more or nothing, and what other traffic looks like."""
    long = Batch(contexts=4, per_context=4, context_tokens=4000)
    system = Batch(system_tokens=512, context_tokens=1088)
    hot = Batch(asked=(32, 1, 1, 1, 1))
    cases = [
        OneEngineCase("batches of 12", 20, SIDE_REPEATS, Batch(per_context=2)),
        OneEngineCase("batches of 72", 20, SIDE_REPEATS, Batch(per_context=12)),
        OneEngineCase("no two on one context", 20, SIDE_REPEATS, Batch(36, 1)),
        OneEngineCase("at most 4 running", 20, SIDE_REPEATS, max_num_seqs=4),
        OneEngineCase("4 contexts of 4000 tokens, 40 blocks", 40, SIDE_REPEATS, long),
        OneEngineCase("all fits: 300 blocks", 300, SIDE_REPEATS),
        OneEngineCase("system prompt of 512 tokens", 20, SIDE_REPEATS, system),
        OneEngineCase("32 of 36 on one context", 20, SIDE_REPEATS, hot),
        OneEngineCase("labels name sessions, 40 blocks", 40, SIDE_REPEATS, Batch(by_session=True)),
    ]
    return [replace(case, arms=TWO_ARMS) for case in cases]


def server_cases(quick: bool, repeats: int = SIDE_REPEATS) -> list[Case]:
    """Batches through servers of their own, with HTTP and LMCache."""
    small, middle = EngineSetup(20), EngineSetup(80)
    sizes = [
        Case(size_title(20), small, arms=ALL_ARMS),
        Case(size_title(80), middle, arms=ALL_ARMS),
    ]
    lmcache = [
        Case("LMCache, empty", EngineSetup(20, l1_gb=1.0)),
        Case("LMCache with all contexts in it", EngineSetup(20, l1_gb=1.0), warm=True),
        Case("LMCache with room for 3 contexts", EngineSetup(20, l1_gb=0.02), warm=True),
    ]
    if quick:
        return [replace(sizes[0], arms=TWO_ARMS)]
    return [replace(case, repeats=repeats) for case in sizes + lmcache if repeats]
