"""The cache curve from traces alone: distances, replay, bound and knee."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.lru_stack import LruStack
from loadgen.locality.replay import CacheReplay
from loadgen.locality.trace import BlockNames, Chain, Trace

BLOCK = 4


def trace_of(prompts: list[str], output_tokens: int = 1, users: int = 1, batch: int = 1) -> Trace:
    names = BlockNames(BLOCK)
    chains = (names.chain([ord(each) for each in prompt], output_tokens) for prompt in prompts)
    return Trace(tuple(chains), BLOCK, users, batch)


def prompts(most_questions: int) -> st.SearchStrategy[list[str]]:
    """Few contexts of one to four blocks, and questions that never fill a prompt's last block:
    only those are copied, where the stack may be a block off."""
    question = st.tuples(st.integers(0, most_questions), st.sampled_from([1, 2, 3, 5, 6, 7]))
    one = st.tuples(st.sampled_from("abcdef"), question)
    return st.lists(one, min_size=1, max_size=40).map(
        lambda drawn: [
            context * (BLOCK * (1 + ord(context) % 4)) + chr(200 + number) * length
            for context, (number, length) in drawn
        ]
    )


def test_blocks_have_one_name_where_all_tokens_up_to_their_ends_are_the_same() -> None:
    names = BlockNames(2)
    first, same_head, other_head = (
        names.chain(ids, 1) for ids in ([1, 2, 3, 4, 5], [1, 2, 3, 4], [9, 9, 3, 4])
    )
    assert len(first.blocks) == 2
    assert first.blocks == same_head.blocks
    assert not set(first.blocks) & set(other_head.blocks)


@given(prompts(3), st.integers(1, 9), st.integers(0, 40))
@settings(deadline=None)
def test_one_pass_gives_what_serving_the_trace_at_each_size_gives(
    sent: list[str], output_tokens: int, spare_blocks: int
) -> None:
    trace = trace_of(sent, output_tokens)
    blocks = trace.least_blocks + spare_blocks
    assert LruStack(trace).cached_tokens(blocks) == CacheReplay(trace, blocks).run().cached_tokens


def test_contexts_in_turn_need_room_for_all_of_them_and_the_question() -> None:
    """Three contexts of two blocks and a question in a third: between two uses of one lie four
    blocks of the others. Five blocks never hit, six lose the tail, seven hold all."""
    trace = trace_of(["a" * 8 + "?", "b" * 8 + "?", "c" * 8 + "?"] * 5)
    curve = predict(trace, [5 * BLOCK, 6 * BLOCK, 7 * BLOCK])
    assert [point.cached_tokens for point in curve.points] == [0, 12 * 4, 12 * 8]
    assert curve.knee.working_set_tokens == 7 * BLOCK
    assert curve.knee.enough_tokens == 7 * BLOCK
    assert curve.knee.least_tokens == 3 * BLOCK
    assert curve.knee.reuse_tokens == 5 * BLOCK
    assert curve.bound == 12 * 8 / (15 * 9)


def test_the_last_token_of_a_repeated_prompt_is_computed_with_its_block() -> None:
    trace = trace_of(["a" * 8, "a" * 8])
    assert predict(trace, [64]).points[0].cached_tokens == 4
    assert CacheReplay(trace, 16).run().cached == [0, 4]


def test_full_blocks_of_replies_take_room_in_the_cache() -> None:
    sent = ["a" * 8 + "?", "b" * 8 + "?"] * 4
    short, long = (predict(trace_of(sent, tokens)) for tokens in (1, 16))
    assert short.bound == long.bound
    assert long.knee.working_set_tokens > short.knee.working_set_tokens


@given(prompts(5), st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_the_knee_is_the_smallest_size_that_keeps_its_word(
    sent: list[str], output_tokens: int
) -> None:
    curve = predict(trace_of(sent, output_tokens))
    knee, rates = curve.knee, [point.hit_rate for point in curve.points]
    assert all(before <= after <= curve.bound for before, after in pairwise(rates))
    assert curve.at(knee.enough_tokens).hit_rate >= 0.99 * curve.bound
    assert curve.at(knee.working_set_tokens).hit_rate == curve.bound
    for tokens, share in ((knee.enough_tokens, 0.99), (knee.working_set_tokens, 1.0)):
        if tokens > knee.least_tokens:
            assert curve.at(tokens - BLOCK).hit_rate < share * curve.bound
    assert knee.enough_tokens in [point.tokens for point in curve.points]


def test_requests_side_by_side_hold_blocks_that_others_could_use() -> None:
    """Two at a time hold all six blocks between them; one at a time, three stay known."""
    sent = [each * 8 + "?" for each in "abab"]
    one, two = (predict(trace_of(sent, 2, users), [6 * BLOCK]) for users in (1, 2))
    assert one.points[0].cached_tokens == 2 * 8
    assert two.points[0].cached_tokens == 2 * 8
    three = [each * 8 + "?" for each in "aabbaabb"]
    together = predict(trace_of(three, 2, users=2), [6 * BLOCK]).points[0]
    assert together.cached_tokens == 6 * 8


def test_a_batch_is_sent_when_the_one_before_is_complete() -> None:
    """In batches of two, the second context of the first batch is still there for the second."""
    sent = [each * 8 + "?" for each in "abba"]
    replay = CacheReplay(trace_of(sent, 2, batch=2), 6).run()
    assert replay.cached == [0, 0, 8, 8]


def test_a_request_that_does_not_fit_waits_for_room() -> None:
    sent = [each * 8 + "?" for each in "aabb"]
    assert CacheReplay(trace_of(sent, 2, users=4), 3).run().cached == [0, 8, 0, 8]


def test_one_that_outgrows_the_cache_beside_others_is_set_back_and_still_served() -> None:
    replay = CacheReplay(trace_of(["a" * 7, "b" * 7, "c" * 7], output_tokens=9, users=3), 6).run()
    assert len(replay.cached) == 3


def test_a_prompt_longer_than_a_step_is_computed_in_pieces() -> None:
    trace = trace_of(["a" * 40 + "?", "a" * 40 + "!"], output_tokens=3)
    assert CacheReplay(replace(trace, step_tokens=7), 20).run().cached == [0, 40]


@pytest.mark.parametrize(
    ("trace", "sizes", "said"),
    [
        (Trace((), BLOCK), [64], "no request was sent"),
        (trace_of(["a" * 20]), [16], "does not hold the longest request: give at least 20"),
        (trace_of(["a" * 20]), [0], "does not hold the longest request"),
    ],
)
def test_what_cannot_be_predicted_is_said(trace: Trace, sizes: list[int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict(trace, sizes)


@pytest.mark.parametrize("size", [0, -1, 10**9])
def test_a_block_of_no_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="--block-size"):
        BlockNames(size)


def test_without_reuse_the_least_cache_is_enough() -> None:
    curve = predict(trace_of(["a" * 9, "b" * 9]))
    assert curve.bound == 0
    assert curve.knee.enough_tokens == curve.knee.working_set_tokens == curve.knee.least_tokens
    assert curve.points[0].tokens == curve.knee.least_tokens


def test_a_chain_counts_what_is_kept_of_a_reply() -> None:
    assert Chain((), 7, 0).kept_tokens == Chain((), 7, 1).kept_tokens == 7
    assert Chain((), 7, 5).kept_tokens == 11
