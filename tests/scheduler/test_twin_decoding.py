"""Long simulations: decoding beside vLLM's scheduler gives what it gives, to the last bit."""

import random
from collections import deque
from typing import Any

import pytest
from test_twin import STEP
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from loadgen.twin.block_hashes import ContextHashes, block_hasher
from loadgen.twin.decoding import LeanEngine
from loadgen.twin.engine import EngineShape, VirtualEngine
from loadgen.twin.ledger import ServedTokens, TwinRequest
from loadgen.twin.prompt_ids import PromptIds

REQUESTS = 90
SHAPES: dict[str, dict[str, Any]] = {
    "room for all": {"usable_blocks": 400},
    "preemptions": {"usable_blocks": 60},
    "few at once": {"usable_blocks": 60, "max_num_seqs": 6},
    "chunks of prompts": {"usable_blocks": 45, "max_num_batched_tokens": 64, "max_num_seqs": 32},
    "a short window": {"usable_blocks": 80, "max_model_len": 450},
    "no prefix cache": {"usable_blocks": 60, "prefix_caching": False},
}


def asked(seed: int) -> deque[TwinRequest]:
    chance, at_s, found = random.Random(seed), 0.0, deque[TwinRequest]()
    for n in range(REQUESTS):
        at_s += chance.expovariate(6)
        context = chance.randrange(8)
        own = (100 + n,) * chance.randrange(1, 40)
        prompt = (1 + context,) * (100 + 37 * context) + own
        output = chance.randrange(1, 120)
        found.append(TwinRequest(str(n), f"c{context}", prompt, at_s, output))
    return found


def served(engine: VirtualEngine, coming: deque[TwinRequest]) -> dict[str, ServedTokens]:
    found = {}
    while coming or engine.busy:
        if not engine.busy:
            engine.now_s = max(engine.now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= engine.now_s:
            engine.submit(coming.popleft())
        engine.step()
        found |= {name: engine.ledger.take(name) for name in engine.finished}
    return found


def test_who_was_preempted_finds_replies_to_the_same_prompt() -> None:
    shape = EngineShape(usable_blocks=60, block_size=16, max_model_len=2048)
    alike = [TwinRequest(str(n), "c", (1,) * 330, n / 9, 90) for n in range(24)]
    real, lean = VirtualEngine(shape, STEP, is_whole=False), LeanEngine(shape, STEP)
    assert served(real, deque(alike)) == served(lean, deque(alike))
    assert real.ledger.preemptions > 0
    assert real.ledger.replayed_tokens == lean.ledger.replayed_tokens


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_each_token_comes_when_the_scheduler_gives_it(name: str, seed: int) -> None:
    shape = EngineShape(**{"block_size": 16, "max_model_len": 2048, **SHAPES[name]})
    real, lean = VirtualEngine(shape, STEP, is_whole=False), LeanEngine(shape, STEP)
    assert LeanEngine.serves(shape)
    assert served(real, asked(seed)) == served(lean, asked(seed))
    for counter in (
        *("computed_tokens", "replayed_tokens", "decode_tokens", "reported_tokens"),
        *("reported_cached_tokens", "generated_tokens", "preemptions", "peak_running"),
    ):
        assert getattr(real.ledger, counter) == getattr(lean.ledger, counter), counter
    assert lean.leaked_blocks == 0
    if name == "preemptions":
        assert real.ledger.preemptions > 0


class Ids:
    """One id for each word, with its space, and one before all."""

    def __init__(self, merges: bool) -> None:
        self.encoded = 0
        self._merges = merges

    def ids(self, prompt: str) -> list[int]:
        return [1, *self.plain_ids(prompt)]

    def plain_ids(self, text: str) -> list[int]:
        self.encoded += len(text)
        words = text.split(" ")
        return [len(words) if self._merges else 0, *(hash(word) for word in words if word)]


class FlatIds(Ids):
    def plain_ids(self, text: str) -> list[int]:
        self.encoded += len(text)
        return [hash(word) for word in text.split(" ") if word]


def test_what_prompts_share_is_encoded_once() -> None:
    contexts = ["word " * 500 + f"of context {n}" for n in range(3)]
    prompts = [f"{contexts[n % 3]}\n\nQuestion: number {n}?" for n in range(60)]
    prompts += ["Question: alone?", "\n\nQuestion: "]
    shared, whole = FlatIds(False), FlatIds(False)
    made = PromptIds(shared)  # type: ignore[arg-type]
    assert [list(made.ids(each)) for each in prompts] == [whole.ids(each) for each in prompts]
    assert shared.encoded < 0.4 * whole.encoded


def test_a_tokenizer_that_sees_the_whole_gets_it() -> None:
    """Its ids depend on all of the text: no part has them."""
    contexts = ["word " * 500 + f"of context {n}" for n in range(3)]
    prompts = [f"{contexts[n % 3]}\n\nQuestion: number {n}?" for n in range(12)]
    odd = Ids(True)
    made = PromptIds(odd)  # type: ignore[arg-type]
    assert [list(made.ids(each)) for each in prompts] == [Ids(True).ids(each) for each in prompts]


def test_hashes_are_those_of_each_prompt_alone() -> None:
    size, shared = 16, ContextHashes(16)
    prompts = [(name, tuple(range(n)) + (9,) * 40) for n in (100, 37, 3, 164, 100) for name in "ab"]
    prompts += [("a", (5,)), ("a", ()), ("b", tuple(range(90)))]
    for name, prompt in prompts:
        one, other = (
            Request(
                request_id="r",
                prompt_token_ids=[*prompt],
                sampling_params=SamplingParams(max_tokens=40),
                pooling_params=None,
                block_hasher=hasher,
            )
            for hasher in (shared.of(name), block_hasher(size))
        )
        for _ in range(2):
            assert one.block_hashes == other.block_hashes
            assert len(one.block_hashes) == one.num_tokens // size
            one.append_output_token_ids([7] * 20)
            other.append_output_token_ids([7] * 20)
