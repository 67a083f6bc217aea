"""Predicted hits of a tier of host memory against vLLM's own scheduler and offloading manager."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from ask import Ask
from digest_engine import BLOCK_BYTES, BLOCK_TOKENS, STEP_TOKENS, DigestEngine, tier
from test_locality_against_vllm import Sending, trace_of, workload

from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.tier_replay import TierReplay


def cached_tokens(engine: DigestEngine, sent: list[Sending]) -> int:
    """Prompt tokens that vLLM does not compute, one request after the other."""
    for place, (prompt, reply) in enumerate(sent):
        engine.submit(Ask(str(place), "context", prompt, output_tokens=reply))
        engine.run()
        engine.settle()
    replies = sum(reply - 1 for _, reply in sent)
    return sum(len(prompt) for prompt, _ in sent) - (engine.computed_tokens - replies)


@pytest.mark.parametrize("seed", range(8))
def test_each_hit_is_one_of_vllms(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    sent = workload(rng, BLOCK_TOKENS)
    trace = replace(trace_of(sent, BLOCK_TOKENS), step_tokens=STEP_TOKENS)
    whole = sum(len(prompt) % BLOCK_TOKENS == 0 for prompt, _ in sent)
    for chunks in (4, 20, 60):
        blocks = trace.least_blocks + rng.randrange(12)
        with DigestEngine(blocks, tier("host", chunks, tmp_path)) as engine:
            cached = cached_tokens(engine, sent)
            loaded, stored = (
                each // BLOCK_BYTES * BLOCK_TOKENS
                for each in (engine.loaded_bytes, engine.stored_bytes)
            )
        hits = TierReplay(trace, blocks, chunks).run()
        assert hits.engine_tokens + hits.tier_tokens == cached
        assert 0 <= loaded - hits.tier_tokens <= whole, "but for the last token of a prompt"
        assert hits.stored_tokens == stored
        assert 0 <= stored - hits.unread_tokens <= loaded


def test_what_is_stored_and_not_read_while_it_is_there_is_counted_each_time() -> None:
    """The engine holds one prompt of five blocks, the tier two."""
    prompts = [tuple(range(c * 100, c * 100 + 40)) for c in range(4)]

    def hits(*order: int) -> tuple[int, int]:
        """Tokens stored, and of them never read."""
        trace = trace_of([(prompts[at], 1) for at in order], 8)
        found = TierReplay(trace, trace.least_blocks, 10).run()
        assert found.kept_tokens == 80
        return found.stored_tokens, found.unread_tokens

    assert hits(0, 1, 2) == (120, 120)
    assert hits(0, 1, 0, 1) == (80, 0)
    assert hits(0, 1, 2, 0) == (160, 160), "gone when it is wanted"
    assert hits(0, 1, 0, 2, 3, 0) == (200, 160), "read once, stored anew and not read again"


def test_a_point_of_the_curve_counts_both() -> None:
    trace = trace_of([(tuple(range(c * 100, c * 100 + 40)), 1) for c in (1, 2, 3) * 4], 8)
    alone, with_tier = (
        predict(trace, [48], tier_tokens=tokens).points[0] for tokens in (None, 8 * 15)
    )
    assert (alone.cached_tokens, alone.tier_tokens) == (0, 0)
    assert (with_tier.cached_tokens, with_tier.tier_tokens) == (9 * 39, 9 * 39)
    assert with_tier.hit_rate == pytest.approx(9 * 39 / (12 * 40))
    with pytest.raises(UsageError, match="one request after the other: here 4 are in flight"):
        predict(replace(trace, users=4), [512], tier_tokens=8)
