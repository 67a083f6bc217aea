"""The stated bounds: how long a request can be passed over."""

from statistics import fmean

import pytest
from engine_shape import EngineShape, settings
from virtual_engine import VirtualEngine, overtakes
from virtual_load import Mix, poisson, shuffled

from loadgen.twin.ledger import EngineLedger

HOT = [0.97] + [0.03 / 15] * 15


def serve(asks: list, blocks: int = 80, seats: int = 128, **plugin: object) -> EngineLedger:
    chosen = settings(**{"policy": "lpm", **plugin})
    shape = EngineShape(usable_blocks=blocks, max_num_seqs=seats, plugin=chosen)
    return VirtualEngine(shape).run(asks)


def hot_and_cold(seed: int, count: int = 300, rate: float = 60.0) -> list:
    return poisson(Mix(contexts=16, seed=seed), rate, count, HOT)


def check_lpm_bound(ledger: EngineLedger, quantum: int, max_overtakes: int) -> int:
    """Every request against its own bound; the most overtakes of any."""
    counts = overtakes(ledger)
    for name, count in counts.items():
        contexts = ledger.contexts_ahead[name] + 1
        assert count <= max_overtakes + quantum * contexts, (name, count, contexts)
    return max(counts.values())


def check_prefix_group_bound(ledger: EngineLedger, quantum: int) -> None:
    """From its arrival on, its own included: as many as its place where none overtook it."""
    for name, count in overtakes(ledger).items():
        place = ledger.waiting_ahead[name] + 1
        assert place + count <= quantum * place, (name, count, place)


@pytest.mark.parametrize("quantum", [1, 4, 32])
@pytest.mark.parametrize("max_overtakes", [0, 8, 64])
def test_lpm_overtakes_stay_within_their_bound_under_a_hot_context(
    quantum: int, max_overtakes: int
) -> None:
    for seed in range(2):
        ledger = serve(hot_and_cold(seed), quantum=quantum, max_overtakes=max_overtakes)
        check_lpm_bound(ledger, quantum, max_overtakes)


def test_without_a_bound_the_hot_context_starves_the_cold_ones() -> None:
    asks = hot_and_cold(0)
    free = serve(asks, quantum=10**6, max_overtakes=10**6)
    bounded = serve(asks, quantum=16, max_overtakes=32)
    most = max(overtakes(free).values())
    assert most > 150
    assert check_lpm_bound(bounded, 16, 32) < most / 2


@pytest.mark.parametrize("quantum", [1, 4, 32])
@pytest.mark.parametrize("seats", [4, 128])
def test_prefix_group_admits_within_quantum_times_the_first_come_place(
    quantum: int, seats: int
) -> None:
    for seed in range(2):
        asks = hot_and_cold(seed)
        ledger = serve(asks, seats=seats, policy="prefix-group", quantum=quantum)
        check_prefix_group_bound(ledger, quantum)
        even = poisson(Mix(contexts=8, seed=seed), 20.0, 300)
        ledger = serve(even, blocks=30, policy="prefix-group", quantum=quantum)
        check_prefix_group_bound(ledger, quantum)


@pytest.mark.parametrize("key", ["label", "prefix"])
def test_lpm_bound_in_an_evenly_loaded_overload(key: str) -> None:
    for seed in range(3):
        asks = poisson(Mix(contexts=12, seed=seed), 25.0, 400)
        check_lpm_bound(serve(asks, quantum=4, max_overtakes=16, key=key), 4, 16)


def turns_by_age(names: list[str], quantum: int) -> list[str]:
    """What prefix-group says of a batch: up to `quantum` of the oldest request's context, again."""
    left, order = list(names), []
    while left:
        context = left[0].split("-")[0]
        turn = [name for name in left if name.split("-")[0] == context][:quantum]
        order += turn
        left = [name for name in left if name not in turn]
    return order


@pytest.mark.parametrize("quantum", [1, 3, 8, 100])
@pytest.mark.parametrize("blocks", [20, 80])
def test_prefix_group_serves_a_batch_in_turns_by_age(quantum: int, blocks: int) -> None:
    asks = shuffled(Mix(contexts=4, per_context=20))
    ledger = serve(asks, blocks=blocks, policy="prefix-group", quantum=quantum)
    assert ledger.order == turns_by_age([ask.name for ask in asks], quantum)


def test_max_overtakes_brings_the_oldest_forward() -> None:
    """A cold request among warm ones that keep coming is served as soon as it is overdue."""
    asks = hot_and_cold(3)
    strict = serve(asks, quantum=8, max_overtakes=4)
    loose = serve(asks, quantum=8, max_overtakes=400)
    assert max(overtakes(strict).values()) < max(overtakes(loose).values())


def test_max_wait_makes_the_oldest_overdue_at_once() -> None:
    """With no wait allowed everybody is overdue: the oldest context is next, as in prefix-group."""
    asks = shuffled(Mix(contexts=8, per_context=8))
    chosen = settings(policy="lpm", quantum=4, max_wait_s=1e-9)
    hurried = VirtualEngine(EngineShape(usable_blocks=40, plugin=chosen))
    for ask in asks:
        hurried.submit(ask)
    hurried.now_s = 0.001  # by its clock all of them have waited
    by_age = serve(asks, blocks=40, policy="prefix-group", quantum=4)
    assert hurried.run().order == by_age.order


def test_cold_contexts_do_not_pay_for_a_hot_one() -> None:
    asks = hot_and_cold(0, count=200)
    ours, stock = serve(asks, policy="reuse"), serve(asks, policy="fcfs")
    cold_s, stock_s = (
        fmean(s for name, s in each.latencies_s().items() if not name.startswith("c0-"))
        for each in (ours, stock)
    )
    assert cold_s <= 1.1 * stock_s
    assert ours.order != stock.order


@pytest.mark.parametrize("max_overtakes", [0, 8, 64])
def test_reuse_overtakes_stay_within_their_bound(max_overtakes: int) -> None:
    for seed in range(2):
        for blocks in (20, 80):
            ledger = serve(
                hot_and_cold(seed), blocks=blocks, policy="reuse", max_overtakes=max_overtakes
            )
            most_waiting = max(ledger.waiting_ahead.values()) + 1
            assert max(overtakes(ledger).values()) <= max(max_overtakes, (most_waiting + 1) // 2)
