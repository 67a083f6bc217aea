"""Which prompts are recorded, so that what a cache shares cannot pass for what it knows.

Every document gives one passage as its context, and several others, each as long as whole chunks,
that stand for long questions. Each question is asked alone, under its document's context, under
another passage of its document, and under the context of another document.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_reading.errors import KvError
from kv_reading.request import KvRequest

Ids = tuple[int, ...]
SHINGLE_TOKENS = 8
MAX_SHARED = 0.1
"""Share of a passage's runs of eight tokens that may stand in an earlier one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A document by its token ids, with short questions about it, by id and token ids."""

    doc_id: str
    token_ids: Ids
    questions: tuple[tuple[str, Ids], ...] = ()


@dataclass(frozen=True, slots=True)
class Design:
    """`passage_tokens` of each context and question must be whole chunks, two at least."""

    passage_tokens: int
    questions: int = 4
    documents: int | None = None
    short_questions: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A document's passages: its context, its questions, and what is left."""

    source: Source
    context: Ids
    questions: tuple[Ids, ...]
    rest: Ids


def cut_sources(sources: Sequence[Source], design: Design) -> list[Cut]:
    """Documents long enough, in a seeded order, as many as wanted. Raises KvError for too few."""
    if design.questions < 2 or design.passage_tokens < 1:
        raise KvError(
            "give at least --questions 2 and --chunks 1: one question has no other beside it"
        )
    order = random.Random(design.seed).sample(list(sources), len(sources))
    seen: set[Ids] = set()
    cuts = [found for source in order if (found := _cut(source, design, seen)) is not None]
    cuts = cuts[: design.documents]
    if len(cuts) <= design.questions:
        raise KvError(
            f"{len(cuts)} of {len(sources)} documents have {design.questions + 1} passages of"
            f" {design.passage_tokens} tokens that share no text, more than {design.questions} are"
            " needed: give longer documents or fewer --questions"
        )
    return cuts


def make_requests(
    cuts: Sequence[Cut], design: Design, text_of: Callable[[Ids], str]
) -> list[KvRequest]:
    """All prompts, each question in each of its roles, questions of a document side by side."""
    requests: list[KvRequest] = []
    for at, cut in enumerate(cuts):
        for number, question in enumerate(cut.questions):
            strange = cuts[(at + 1 + number) % len(cuts)]
            other = cut.questions[(number + 1) % len(cut.questions)]
            before = {
                "alone": ((), ""),
                "own": (cut.context, cut.source.doc_id),
                "other": (other, cut.source.doc_id),
                "swapped": (strange.context, strange.source.doc_id),
            }
            name, text = f"{cut.source.doc_id}#{number}", text_of(question)
            requests += [
                KvRequest(prompt, name, cut.source.doc_id, of, len(ids), ids + question, text)
                for prompt, (ids, of) in before.items()
            ]
        requests += _short(cut, design, text_of)
    return requests


def _short(cut: Cut, design: Design, text_of: Callable[[Ids], str]) -> list[KvRequest]:
    doc_id, found = cut.source.doc_id, cut.source.questions[: design.short_questions]
    return [
        KvRequest(prompt, name, doc_id, of, len(before), before + ids, text_of(ids))
        for name, ids in found
        for prompt, before, of in (("short-alone", (), ""), ("short-own", cut.context, doc_id))
    ]


def _cut(source: Source, design: Design, seen: set[Ids]) -> Cut | None:
    size, ids = design.passage_tokens, source.token_ids
    passages: list[Ids] = []
    rest: Ids = ()
    for start in range(0, len(ids), size):
        passage = ids[start : start + size]
        wanted = len(passage) == size and len(passages) <= design.questions
        if wanted and _shared(passage, seen) <= MAX_SHARED:
            passages.append(passage)
            seen |= _shingles(passage)
        else:
            rest += passage
    if len(passages) <= design.questions:
        return None
    return Cut(source, passages[0], tuple(passages[1:]), rest)


def _shared(passage: Ids, seen: set[Ids]) -> float:
    shingles = _shingles(passage)
    return len(shingles & seen) / len(shingles)


def _shingles(ids: Ids) -> set[Ids]:
    return {ids[at : at + SHINGLE_TOKENS] for at in range(len(ids) - SHINGLE_TOKENS + 1)}
