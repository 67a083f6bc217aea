"""Which prompts are asked, so that nothing is shared by accident."""

import random
from collections import Counter

import pytest

from kv_reading import KvError
from kv_reading.recording import Cut, Design, KvRequest, Source, cut_sources, make_requests

DESIGN = Design(passage_tokens=32, questions=2, short_questions=1)


def sources(count: int = 4, tokens: int = 150) -> list[Source]:
    rng = random.Random(2)
    return [
        Source(f"d{at}", tuple(rng.choices(range(1000), k=tokens)), ((f"q{at}", (1, 2)),))
        for at in range(count)
    ]


def made() -> tuple[list[Cut], list[KvRequest]]:
    cuts = cut_sources(sources(), DESIGN)
    return cuts, make_requests(cuts, DESIGN, str)


def test_each_question_has_every_role_once() -> None:
    _, requests = made()
    roles = Counter(each.prompt for each in requests)
    assert roles == dict.fromkeys(("alone", "own", "other", "swapped"), 8) | {
        "short-alone": 4,
        "short-own": 4,
    }
    for request in requests:
        question = request.token_ids[request.question_from :]
        alone = next(
            each
            for each in requests
            if each.question_id == request.question_id and "alone" in each.prompt
        )
        assert question == alone.token_ids
        assert request.topic == alone.topic
        assert request.question_from % 32 == 0


def test_a_swapped_context_is_never_the_questions_own() -> None:
    cuts, requests = made()
    contexts = {cut.source.doc_id: cut.context for cut in cuts}
    swapped = [each for each in requests if each.prompt == "swapped"]
    for each in swapped:
        assert each.context != each.topic
        assert each.token_ids[: each.question_from] == contexts[each.context]
    assert set(Counter(each.context for each in swapped).values()) == {2}


def test_another_passage_is_nobodys_shared_prefix() -> None:
    _, requests = made()
    others = [each for each in requests if each.prompt == "other"]
    before = [each.token_ids[: each.question_from] for each in others]
    for each, passage in zip(others, before, strict=True):
        assert passage != each.token_ids[each.question_from :]
        assert each.context == each.topic
    assert len(set(before)) == len(before)
    own = {each.token_ids[: each.question_from] for each in requests if each.prompt == "own"}
    assert not own & set(before)


def test_passages_that_repeat_a_text_are_left_out() -> None:
    first, *others = sources()
    copy = Source("copy", first.token_ids)
    chosen = [cut.source.doc_id for cut in cut_sources([first, copy, *others], DESIGN)]
    assert len(chosen) == 4
    assert not {"d0", "copy"} <= set(chosen)


def test_the_seed_decides_which_documents_are_taken() -> None:
    def chosen(seed: int) -> list[str]:
        design = Design(passage_tokens=32, questions=2, documents=3, seed=seed)
        return [cut.source.doc_id for cut in cut_sources(sources(), design)]

    assert chosen(1) == chosen(1)
    assert len({tuple(chosen(seed)) for seed in range(6)}) > 1


def test_short_documents_are_refused() -> None:
    with pytest.raises(KvError, match="give longer documents, or fewer questions"):
        cut_sources(sources(tokens=90), DESIGN)


def test_a_question_needs_another_beside_it() -> None:
    with pytest.raises(KvError, match="--questions 2"):
        cut_sources(sources(), Design(passage_tokens=32, questions=1))
