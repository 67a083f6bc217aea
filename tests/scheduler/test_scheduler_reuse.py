"""Policy `reuse` on vLLM's own scheduler: never worse than its order, where others were."""

import random
from dataclasses import replace

import pytest
from ask import Ask
from computed_bound import lower_bound
from engine_shape import EngineShape, settings
from queue_invariants import all_done
from virtual_engine import VirtualEngine, overtakes
from virtual_load import Mix, shuffled, tokens
from vllm.v1.request import Request

from loadgen.twin.ledger import EngineLedger
from scheduler_plugin.group import Waiting
from scheduler_plugin.reuse import Freed, ReuseChoice


def serve(asks: list[Ask], shape: EngineShape, **plugin: object) -> EngineLedger:
    """With the default settings, and others that are given."""
    engine = VirtualEngine(replace(shape, plugin=settings(**plugin)))
    ledger = engine.run(asks)
    all_done(engine, {ask.name for ask in asks})
    return ledger


def stock(asks: list[Ask], shape: EngineShape) -> EngineLedger:
    return VirtualEngine(shape).run(asks)


def bound(asks: list[Ask], block_size: int = 128) -> int:
    return lower_bound([ask.prompt for ask in asks], block_size)


def sessions(seed: int) -> list[Ask]:
    """Six sessions that each ask all of six documents; the label is the session."""
    asks = [
        Ask(f"s{s}-{d}", f"s{s}", tokens(1600, "doc", seed, d) + tokens(30, "q", seed, s, d))
        for s in range(6)
        for d in range(6)
    ]
    random.Random(seed).shuffle(asks)
    return asks


@pytest.mark.parametrize("key", ["auto", "label", "prefix"])
@pytest.mark.parametrize("label", [None, "one for all"])
def test_a_label_that_is_no_document_costs_nothing(key: str, label: str | None) -> None:
    shape = EngineShape(usable_blocks=40, max_num_seqs=16)
    for seed in range(2):
        asks = sessions(seed)
        asks = asks if label is None else [replace(ask, context=label) for ask in asks]
        assert serve(asks, shape, key=key).computed_tokens == bound(asks) == 12_600


def test_a_long_common_prompt_does_not_hide_the_documents() -> None:
    shape = EngineShape(usable_blocks=30)
    for seed in range(2):
        common = tokens(2432, "system", seed)
        prompts = [
            common + tokens(768, "doc", seed, d) + tokens(30, "q", seed, d, n)
            for d in range(6)
            for n in range(6)
        ]
        random.Random(seed).shuffle(prompts)
        asks = [Ask(f"r{n}", "", prompt, labelled=False) for n, prompt in enumerate(prompts)]
        assert serve(asks, shape).computed_tokens == 8_120
        assert stock(asks, shape).computed_tokens > 20_000


def test_wrong_labels_cost_nothing() -> None:
    shape = EngineShape(usable_blocks=40)
    for seed in range(3):
        dice = random.Random(seed)
        asks = shuffled(Mix(contexts=8, per_context=5, seed=seed))
        asks = [replace(ask, context=f"wrong-{dice.randrange(8)}") for ask in asks]
        assert serve(asks, shape).computed_tokens == bound(asks)


@pytest.mark.parametrize("seats", [1, 2, 4, 16])
def test_where_all_fits_the_order_is_stock_decision_for_decision(seats: int) -> None:
    dice = random.Random(seats)
    shape = EngineShape(usable_blocks=2000, max_num_seqs=seats)
    asks, now_s = [], 0.0
    for number in range(120):
        now_s += dice.expovariate(8.0)
        context = "hot" if dice.random() < 0.9 else f"unique-{number}"
        prompt = tokens(1600, context) + tokens(30, "q", number)
        asks.append(Ask(f"r{number}", context, prompt, arrival_s=now_s))
    ours = serve(asks, shape)
    assert ours.steps == stock(asks, shape).steps
    assert max(overtakes(ours).values()) == 0


def cold_among_hot() -> tuple[Ask, list[Ask]]:
    cold = Ask("cold", "cold", tokens(1600, "cold"), 0.1)
    hot = [
        Ask(f"h{n}", "hot", tokens(1600, "hot") + tokens(30, "q", n), 0.165 * n) for n in range(60)
    ]
    return cold, hot


def test_nobody_waits_while_nothing_is_saved() -> None:
    cold, hot = cold_among_hot()
    shape = EngineShape(usable_blocks=400, max_num_seqs=1)
    ours, theirs = serve([*hot, cold], shape), stock([*hot, cold], shape)
    assert ours.latencies_s() == theirs.latencies_s()


def test_max_wait_is_looked_at_at_each_admission() -> None:
    """A cold prompt that would drive the hot one out waits for it, but no longer than it may, by
    the engine's own clock: a second run of the same is the same."""
    cold, hot = cold_among_hot()
    shape = EngineShape(usable_blocks=20, max_num_seqs=1)
    hot = [replace(ask, arrival_s=ask.arrival_s / 2) for ask in hot]
    waits_s = {}
    for most_s in (1.0, 3.0, 100.0):
        first, again = (serve([*hot, cold], shape, max_wait_s=most_s) for _ in range(2))
        assert first.steps == again.steps
        waits_s[most_s] = first.latencies_s()["cold"]
    assert waits_s[1.0] < waits_s[3.0] < waits_s[100.0]
    slowest_s = 1.0  # one admission and its own service
    assert all(wait_s <= most_s + slowest_s for most_s, wait_s in waits_s.items()), waits_s


@pytest.mark.parametrize(
    "mix",
    [
        Mix(contexts=4, per_context=12, context_tokens=2300),
        Mix(contexts=12, per_context=12, question_tokens=200, output_tokens=40),
    ],
    ids=["longer-contexts", "long-questions-and-replies"],
)
def test_contexts_of_which_two_hardly_fit_are_computed_little_more_than_once(mix: Mix) -> None:
    asks = shuffled(mix)
    computed = serve(asks, EngineShape(usable_blocks=40)).computed_tokens
    assert bound(asks) <= computed < 1.3 * bound(asks)
    assert computed < 0.5 * stock(asks, EngineShape(usable_blocks=40)).computed_tokens


def test_batches_are_at_the_lower_bound_from_any_order() -> None:
    for seed in range(10):
        asks = shuffled(Mix(seed=seed))
        for blocks in (20, 40, 80):
            assert serve(asks, EngineShape(usable_blocks=blocks)).computed_tokens == bound(asks)


@pytest.mark.parametrize("labels", [6, 40])
def test_whom_it_admits_without_a_look_loses_nobody_anything(
    labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a step it knows how many blocks nobody waits for, and counts those that are given."""
    admitted = 0
    original = ReuseChoice._is_spare

    def checked(choice: ReuseChoice[Request], entry: Waiting[Request]) -> bool:
        nonlocal admitted
        is_spare = original(choice, entry)
        if is_spare:
            admitted += 1
            freed = Freed(choice._engine, choice._tree, choice._running)
            resident = choice._engine.resident_blocks(entry.request, 0)
            assert choice._lost(entry, resident, freed, None) == {}
        return is_spare

    monkeypatch.setattr(ReuseChoice, "_is_spare", checked)
    shape = EngineShape(usable_blocks=120, max_num_seqs=64, max_num_batched_tokens=4096)
    for seed in range(3):
        mix = Mix(contexts=labels, per_context=12, context_tokens=600, seed=seed)
        serve(shuffled(mix), shape)
    assert admitted > 50
