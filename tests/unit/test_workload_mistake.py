"""Wrong contexts on purpose: so many, never the true one, and the same whoever sends them."""

from itertools import islice

import pytest

from loadgen.context import Document, Question, Request
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.workload import Workload, is_mistaken, other_context

DOCUMENTS = tuple(Document(f"d{n}", f"Of {n}", f"{n} is a number. " * 40) for n in range(4))
CORPUS = Corpus(
    DOCUMENTS, {each.doc_id: (Question(each.doc_id, "Why?", each.doc_id),) for each in DOCUMENTS}
)


def workload(worker: int = 0, workers: int = 1, labels: bool = False, **chosen: float) -> Workload:
    settings = WorkloadSettings(**{"contexts": 4, "seed": 3, **chosen})  # type: ignore[arg-type]
    share = {"worker_index": worker, "workers": workers}
    return Workload(CORPUS, settings, EstimatedTokens(), wrong_labels=labels, **share)


def mistakes(load: Workload, share: float, count: int) -> dict[int, tuple[Request, str | None]]:
    drawn = islice(load.requests(), count)
    return {each.index: (each, load.mistake(each, share)) for each in drawn}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_as_many_as_were_asked_for(share: float) -> None:
    found = sum(is_mistaken(7, share, root) for root in range(4000))
    assert found / 4000 == pytest.approx(share, abs=0.03)
    if share in (0.0, 1.0):
        assert found == 4000 * share


def test_every_other_context_is_as_likely_and_the_true_one_never() -> None:
    found = [other_context(1, 5, root, 2) for root in range(4000)]
    assert {index: round(found.count(index) / 4000, 1) for index in range(5)} == {
        **dict.fromkeys((0, 1, 3, 4), pytest.approx(0.25, abs=0.06)),
        2: 0.0,
    }
    assert {other_context(1, 2, root, 1) for root in range(9)} == {0}


def test_workers_make_the_mistakes_of_one_process() -> None:
    alone = mistakes(workload(repeat=0.3), 0.4, 300)
    shared = [mistakes(workload(worker, 3, repeat=0.3), 0.4, 80) for worker in range(3)]
    compared = 0
    for part in shared:
        for index, (_, wrong) in part.items():
            if index in alone:
                assert alone[index][1] == wrong
                compared += 1
    assert compared > 150
    by_root: dict[int, set[str | None]] = {}
    for request, wrong in alone.values():
        assert wrong != request.context_id
        by_root.setdefault(request.root, set()).add(wrong)
    assert all(len(found) == 1 for found in by_root.values()), "a repeat is the same request"
    assert {wrong for _, wrong in alone.values()} == {None, "d0", "d1", "d2", "d3"}


def test_another_seed_makes_other_mistakes() -> None:
    one, other = mistakes(workload(seed=1), 0.5, 64), mistakes(workload(seed=2), 0.5, 64)
    assert [wrong for _, wrong in one.values()] != [wrong for _, wrong in other.values()]


def test_shuffled_labels_are_wrong_and_prompts_true() -> None:
    for true, wrong in zip(
        islice(workload(contexts=6).requests(), 200),
        islice(workload(contexts=6, labels=True).requests(), 200),
        strict=True,
    ):
        assert (true.label, true.prompt) == (true.context_id, wrong.prompt)
        assert wrong.label != wrong.context_id
        assert wrong.label in {"d0", "d1", "d2", "d3", "mix-00004", "mix-00005"}


def test_a_found_document_is_byte_for_byte_a_context_of_the_run() -> None:
    load = workload(context_tokens=Span(20, 60))  # type: ignore[arg-type]
    for index, document in enumerate(DOCUMENTS):
        context = load.contexts.context(index)
        prompt = load.prompt_behind(document.doc_id, "what the service holds", "Why?")
        assert prompt == f"{context.text}\n\nQuestion: Why?"
        assert context.text != document.text
    assert load.prompt_behind("stranger", "Its text.", "Why?") == "Its text.\n\nQuestion: Why?"
    assert load.prompt_behind(None, "", "Why?") == "Question: Why?"
