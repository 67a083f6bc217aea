"""A recording: which prompts it is of, and its directory.

What a cache shares cannot pass for what it knows. Every document gives one passage as its context,
and several others, each as long as whole chunks, that stand for long questions. Each question is
asked alone, under its document's context, under another passage of its document, and under the
context of another document.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kv_reading import KvError

REQUESTS_JSONL = "requests.jsonl"
KV_JSON, CHUNKS, LIBRARY_JSONL = "kv.json", "chunks", "library.jsonl"
Ids = tuple[int, ...]
SHINGLE_TOKENS = 8
MAX_SHARED = 0.1
"""Share of a passage's runs of eight tokens that may stand in an earlier one."""


@dataclass(frozen=True, slots=True)
class KvRequest:
    """`prompt` is what stands before the question: `own`, `alone`, `other` or `swapped`, for short
    questions `short-own` or `short-alone`. `topic` is the document the question is about,
    `context` the one its context was taken from, empty without one. The question begins with
    token `question_from` and goes to the end. `text` is the question."""

    prompt: str
    question_id: str
    topic: str
    context: str
    question_from: int
    token_ids: tuple[int, ...]
    text: str


def write_requests(folder: Path, requests: Iterable[KvRequest]) -> None:
    """One JSON object a line, in a folder that is there."""
    lines = (json.dumps(asdict(request), ensure_ascii=False) for request in requests)
    (folder / REQUESTS_JSONL).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_requests(folder: Path) -> list[KvRequest]:
    """Raises KvError for a folder without them, or with a damaged file."""
    path = folder / REQUESTS_JSONL
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [_request(json.loads(line)) for line in lines if line]
    except OSError as error:
        raise KvError(
            f"{folder} holds no recorded prompts: make them by `kvswarm kv record`"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise KvError(f"{path} is damaged ({error}): record again") from error


def _request(found: object) -> KvRequest:
    if not isinstance(found, dict):
        raise ValueError("a line is no object")
    ids = found.pop("token_ids")
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ValueError("token_ids are no list of numbers")
    return KvRequest(**found, token_ids=tuple(ids))


@dataclass(frozen=True, slots=True)
class RunFacts:
    """`model` is the folder that was served; a chunk has `chunk_tokens`."""

    model: str
    random_weights: bool
    chunk_tokens: int
    seed: int
    versions: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As kv.json keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LibraryDocument:
    """`text` is the document less the passages that stand for questions, `whole` all of it."""

    doc_id: str
    title: str
    text: str
    whole: str


def read_facts(folder: Path) -> RunFacts:
    """Raises KvError for a directory that holds no complete recording."""
    path = folder / KV_JSON
    try:
        return RunFacts(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise KvError(
            f"{folder} holds no complete recording: make one by `kvswarm kv record`"
        ) from error
    except (ValueError, TypeError) as error:
        raise KvError(f"{path} is damaged ({error}): record again") from error


def read_library(folder: Path) -> list[LibraryDocument]:
    """The documents of a recording. Raises KvError."""
    path = folder / LIBRARY_JSONL
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [LibraryDocument(**json.loads(line)) for line in lines if line]
    except (OSError, ValueError, TypeError) as error:
        raise KvError(f"cannot read {path} ({error}): record again") from error


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
    if design.documents is not None and design.documents <= design.questions:
        raise KvError(
            f"{design.documents} documents with {design.questions} questions of each: more"
            " documents than questions are needed"
        )
    seen: set[Ids] = set()
    cuts = [found for source in order if (found := _cut(source, design, seen)) is not None]
    cuts = cuts[: design.documents]
    if len(cuts) <= design.questions:
        raise KvError(
            f"{len(cuts)} of {len(sources)} documents have {design.questions + 1} passages of"
            f" {design.passage_tokens} tokens that share no text, more than {design.questions} are"
            " needed: give longer documents, or fewer questions of each"
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
