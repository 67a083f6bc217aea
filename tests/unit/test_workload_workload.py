import re
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.context import Document, Question, Request
from loadgen.errors import ContextTooLong
from loadgen.workload.contexts import join_prompt
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.workload import Workload

SIZES = [400, 2000, 800]  # characters; 4 to a token
DOCUMENTS = tuple(
    Document(f"doc-{size}", f"Of {size}", (f"On {size} things. " + "words " * size)[:size])
    for size in SIZES
)
CORPUS = Corpus(
    DOCUMENTS,
    {
        each.doc_id: tuple(
            Question(f"{each.doc_id}-q{number}", f"Which {number}?", each.doc_id)
            for number in range(2)
        )
        for each in DOCUMENTS
    },
)
some_settings = st.builds(
    WorkloadSettings,
    seed=st.integers(),
    contexts=st.integers(1, 12),
    zipf=st.sampled_from([0.0, 1.0]),
    stickiness=st.sampled_from([0.0, 0.5]),
    repeat=st.sampled_from([0.0, 0.4]),
    context_tokens=st.sampled_from([None, Span(16, 16), Span(20, 300)]),
    output_tokens=st.sampled_from([Span(16, 16), Span(1, 50)]),
)


def workload(chosen: WorkloadSettings, worker_index: int = 0, workers: int = 1) -> Workload:
    return Workload(CORPUS, chosen, EstimatedTokens(), worker_index=worker_index, workers=workers)


@given(some_settings)
@settings(deadline=None)
def test_a_prompt_is_new_exactly_when_its_draw_is_its_own_root(chosen: WorkloadSettings) -> None:
    load = workload(chosen)
    first: dict[str, tuple[int, Request]] = {}
    for draw in islice(load.stream, 200):
        request = load.request_for(draw)
        assert request.index == draw.index
        assert (request.prompt in first) == (draw.root != draw.index)
        root, same = first.setdefault(request.prompt, (draw.index, request))
        assert root == draw.root
        assert (same.context_id, same.question_id) == (request.context_id, request.question_id)
        assert same.max_tokens == request.max_tokens


def test_context_first_and_unchanged_and_question_last() -> None:
    load = workload(WorkloadSettings(contexts=9))
    for draw in islice(load.stream, 50):
        context = load.contexts.context(draw.context_index)
        question_id, question = load.contexts.page(draw.context_index).ask(draw.question_number)
        request = load.request_for(draw)
        assert request.prompt == join_prompt(context.text, question)
        assert request.prompt.startswith(context.text)
        assert request.prompt.endswith(question)
        assert (request.context_id, request.question_id) == (context.context_id, question_id)


def test_all_prompts_begin_with_the_same_system_prompt() -> None:
    load = workload(WorkloadSettings(contexts=9, system_tokens=700))
    (system,) = {load.contexts.system_prompt()}
    assert 690 <= EstimatedTokens().count(system) <= 700
    plain = workload(WorkloadSettings(contexts=9))
    for request, bare in islice(zip(load.requests(), plain.requests(), strict=True), 50):
        assert request.prompt == f"{system}\n\n{bare.prompt}"
    assert load.prompt_behind(None, "", "Why?") == f"{system}\n\nQuestion: Why?"
    assert load.prompt_behind("doc-400", "", "Why?").startswith(f"{system}\n\n")


def test_the_system_prompt_takes_room() -> None:
    chosen = WorkloadSettings(system_tokens=200)
    message = refusal(chosen, 600, None)
    assert "with system prompt (2" in message
    needed = re.search(r" (\d+), but", message)
    assert needed
    assert int(needed[1]) >= needed_tokens() + 190
    workload(chosen).check_fit(int(needed[1]), None)
    refusal(chosen, int(needed[1]) - 1, None)
    assert refusal(chosen, 200, None).endswith(": lower --system-tokens")


def test_workers_share_one_run() -> None:
    chosen = WorkloadSettings(seed=3, contexts=9, repeat=0.2, output_tokens=Span(1, 50))
    alone = workload(chosen)
    whole = {request.index: request for request in islice(alone.requests(), 300)}
    for worker in range(3):
        load = workload(chosen, worker, 3)
        for request in islice(load.requests(), 60):
            assert whole[request.index] == request


def test_reply_lengths_fill_their_span() -> None:
    load = workload(WorkloadSettings(output_tokens=Span(3, 6)))
    assert {load.request_for(next(load.stream)).max_tokens for _ in range(200)} == {3, 4, 5, 6}


# The longest document has 500 tokens, the question 19, the reply 16.
def refusal(chosen: WorkloadSettings, window: int, cache: int | None, template: int = 0) -> str:
    with pytest.raises(ContextTooLong) as error:
        workload(chosen).check_fit(window, cache, template)
    message = str(error.value)
    assert "\n" not in message
    return message


def needed_tokens() -> int:
    match = re.search(r" (\d+), but", refusal(WorkloadSettings(), 100, None))
    assert match
    return int(match[1])


def test_the_longest_document_decides_to_the_token() -> None:
    needed = needed_tokens()
    load = workload(WorkloadSettings())
    longest = max(load.request_for(next(load.stream)).prompt for _ in range(3000))
    assert len(longest) // 4 + 16 <= needed <= 500 + 16 + 30
    load.check_fit(needed, None)
    load.check_fit(needed, needed)
    assert "'doc-2000' has 500 tokens" in refusal(WorkloadSettings(), needed - 1, None)
    refusal(WorkloadSettings(), 10_000, needed - 1)
    refusal(WorkloadSettings(), needed, None, template=1)


def test_documents_that_are_not_used_do_not_count() -> None:
    workload(WorkloadSettings(contexts=1)).check_fit(200, None)


def test_the_refusal_names_bounds_and_remedies() -> None:
    message = refusal(WorkloadSettings(), 300, 200)
    assert "the model's window is 300 tokens and the KV cache holds 200" in message
    limit = re.search(r"give --context-tokens (\d+) or less or raise --kv-tokens", message)
    assert limit
    fitting = Span(int(limit[1]), int(limit[1]))
    workload(WorkloadSettings(context_tokens=fitting)).check_fit(300, 200)
    assert "--kv-tokens" not in refusal(WorkloadSettings(), 300, None)
    long_reply = WorkloadSettings(output_tokens=Span(1, 290))
    assert refusal(long_reply, 300, None).endswith(": lower --output-tokens")


def test_a_span_is_judged_by_the_lengths_drawn_from_it() -> None:
    chosen = WorkloadSettings(contexts=10_000, context_tokens=Span(16, 2000))
    load = workload(chosen)
    message = refusal(chosen, 1500, None)
    named = re.search(r"context '([\w-]+)' has (\d+) tokens", message)
    assert named
    drawn = {load.contexts.context_id(i): load.contexts.drawn_tokens(i) for i in range(10_000)}
    assert drawn[named[1]] == int(named[2])
    longest = max(length or 0 for length in drawn.values())
    load.check_fit(longest + 60, None)
    assert not load.contexts._pages
