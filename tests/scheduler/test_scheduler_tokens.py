"""How many prompt tokens the real scheduler computes in each order, against the least possible."""

from dataclasses import replace

import pytest
from ask import Ask
from computed_bound import lower_bound
from engine_shape import EngineShape, settings
from queue_invariants import all_done
from virtual_engine import VirtualEngine
from virtual_load import Mix, family, grouped, shuffled, unlabelled

from loadgen.twin.ledger import EngineLedger

SIZES = (20, 40, 80, 158)
POLICIES = ("prefix-group", "lpm", "reuse")


def serve(asks: list[Ask], shape: EngineShape, **plugin: object) -> EngineLedger:
    shape = replace(shape, plugin=settings(**plugin)) if plugin else shape
    engine = VirtualEngine(shape)
    ledger = engine.run(asks)
    all_done(engine, {ask.name for ask in asks})
    assert ledger.computed_tokens == ledger.reported_tokens
    return ledger


def bound(asks: list[Ask], block_size: int = 128) -> int:
    return lower_bound([ask.prompt for ask in asks], block_size)


def test_bound_is_one_full_prompt_per_context_and_the_rest_behind_the_common_blocks() -> None:
    asks = shuffled(Mix())
    assert bound(asks) == 6 * 1630 + 30 * (1630 - 1536) == 12_600


def test_bound_counts_a_shared_start_once_and_a_prompt_of_whole_blocks_never_as_cached() -> None:
    system, left, right = (1,) * 4, (2,) * 4, (3,) * 4
    assert lower_bound([system + left, system + right], 4) == 4 + 4 + 4
    assert lower_bound([system + left] * 3, 4) == 4 + 3 * 4


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("blocks", SIZES)
@pytest.mark.parametrize(
    ("policy", "key"),
    [*((each, "auto") for each in POLICIES), ("prefix-group", "prefix"), ("lpm", "prefix")],
)
def test_a_batch_computes_the_least_possible(
    policy: str, key: str, blocks: int, is_async: bool
) -> None:
    shape = EngineShape(usable_blocks=blocks, async_scheduling=is_async)
    for seed in range(3):
        asks = shuffled(Mix(seed=seed))
        assert serve(asks, shape, policy=policy, key=key).computed_tokens == bound(asks)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", SIZES)
def test_without_labels_the_prefix_groups_as_well(policy: str, blocks: int) -> None:
    asks = unlabelled(shuffled(Mix()))
    ledger = serve(asks, EngineShape(usable_blocks=blocks), policy=policy, key="auto")
    assert ledger.computed_tokens == bound(asks)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("blocks", SIZES)
def test_first_come_first_served_computes_more_unless_the_cache_holds_all(
    blocks: int, is_async: bool
) -> None:
    asks = shuffled(Mix())
    ledger = serve(asks, EngineShape(usable_blocks=blocks, async_scheduling=is_async))
    assert (ledger.computed_tokens > bound(asks)) is (blocks < 158)


@pytest.mark.parametrize("policy", POLICIES)
def test_clients_that_sort_their_batch_gain_nothing_more(policy: str) -> None:
    shape = EngineShape(usable_blocks=20)
    mine, theirs = shuffled(Mix()), grouped(Mix())
    sorted_stock, ours = serve(theirs, shape), serve(mine, shape, policy=policy)
    assert ours.computed_tokens == sorted_stock.computed_tokens


@pytest.mark.parametrize("blocks", [150, 300])
@pytest.mark.parametrize("policy", POLICIES)
def test_small_blocks_as_on_a_gpu(policy: str, blocks: int) -> None:
    shape = EngineShape(usable_blocks=blocks, block_size=16)
    asks = shuffled(Mix())
    assert serve(asks, shape, policy=policy).computed_tokens == bound(asks, 16)
    assert serve(asks, shape).computed_tokens > bound(asks, 16)


@pytest.mark.parametrize(
    "mix",
    [
        Mix(contexts=40, per_context=3),
        Mix(contexts=4, per_context=12, context_tokens=2300),
        Mix(contexts=12, per_context=12, question_tokens=200, output_tokens=40),
    ],
    ids=["many-contexts", "longer-contexts", "long-questions-and-replies"],
)
@pytest.mark.parametrize("policy", ["prefix-group", "lpm"])
def test_other_mixes(policy: str, mix: Mix) -> None:
    asks = shuffled(mix)
    assert serve(asks, EngineShape(usable_blocks=40), policy=policy).computed_tokens == bound(asks)


@pytest.mark.parametrize("seats", [1, 4, 16])
def test_few_seats(seats: int) -> None:
    asks = shuffled(Mix())
    shape = EngineShape(usable_blocks=40, max_num_seqs=seats)
    assert serve(asks, shape, policy="lpm").computed_tokens == bound(asks)


FAMILIES = {
    "one-system": (1, 8, 4, 1000, 1200),
    "two-systems": (2, 4, 4, 1000, 1000),
    "three-systems": (3, 4, 4, 900, 700),
}


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("blocks", [20, 40, 80])
@pytest.mark.parametrize("sizes", FAMILIES.values(), ids=FAMILIES)
def test_lpm_serves_documents_below_a_common_system_prompt_together(
    sizes: tuple[int, int, int, int, int], blocks: int, labelled: bool
) -> None:
    for seed in range(3):
        asks = family(*sizes, seed=seed)
        asks = asks if labelled else unlabelled(asks)
        ledger = serve(asks, EngineShape(usable_blocks=blocks), policy="lpm")
        assert ledger.computed_tokens == bound(asks)


@pytest.mark.parametrize("blocks", [20, 40, 80])
@pytest.mark.parametrize("sizes", FAMILIES.values(), ids=FAMILIES)
def test_prefix_group_computes_each_document_once_and_its_system_prompt_once_more_at_most(
    sizes: tuple[int, int, int, int, int], blocks: int
) -> None:
    """It takes contexts by age: what two of them share may be evicted between their turns."""
    systems, documents, _, system_tokens, _ = sizes
    for seed in range(3):
        asks = family(*sizes, seed=seed)
        ledger = serve(asks, EngineShape(usable_blocks=blocks), policy="prefix-group")
        again = (documents - 1) * systems * (system_tokens // 128 * 128)
        assert bound(asks) <= ledger.computed_tokens <= bound(asks) + again
        assert (
            ledger.computed_tokens < serve(asks, EngineShape(usable_blocks=blocks)).computed_tokens
        )


@pytest.mark.parametrize("policy", ["prefix-group", "lpm"])
def test_a_wrong_label_costs_tokens_but_no_reply(policy: str) -> None:
    asks = [replace(a, context=f"wrong-{n % 5}") for n, a in enumerate(shuffled(Mix()))]
    ledger = serve(asks, EngineShape(usable_blocks=20), policy=policy, key="label")
    assert set(ledger.output_tokens.values()) == {8}
    by_prefix = serve(asks, EngineShape(usable_blocks=20), policy=policy, key="prefix")
    assert by_prefix.computed_tokens == bound(asks) < ledger.computed_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_with_ample_cache_tokens_equal_stock(policy: str) -> None:
    shape = EngineShape(usable_blocks=600)
    for seed in range(5):
        asks = shuffled(Mix(contexts=10, per_context=10, seed=seed))
        ours, stock = serve(asks, shape, policy=policy), serve(asks, shape)
        assert ours.computed_tokens == stock.computed_tokens == bound(asks)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_context_is_served_in_stock_order(policy: str) -> None:
    shape = EngineShape(usable_blocks=20)
    asks = shuffled(Mix(contexts=1, per_context=80))
    assert serve(asks, shape, policy=policy).steps == serve(asks, shape).steps


def test_a_cold_admission_may_evict_what_was_warm_when_it_was_chosen() -> None:
    """One turn of the warm context, then cold ones push it out: no request may be mixed up."""
    warm = [replace(a, arrival_s=0.0) for a in grouped(Mix(contexts=1, per_context=1))]
    late = grouped(Mix(contexts=7, per_context=5))[1:]
    late = [replace(a, arrival_s=0.4 + 0.001 * n) for n, a in enumerate(late)]
    for quantum in (1, 2, 32):
        ledger = serve(warm + late, EngineShape(usable_blocks=30), policy="lpm", quantum=quantum)
        assert len(ledger.order) == len(set(ledger.order)) == len(warm + late)
