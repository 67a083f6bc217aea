"""The contexts of a run: documents first, then texts composed of the corpus's paragraphs.

First sentences tell contexts apart within their first 16 tokens. A token stands for at least one
byte, so texts that differ within 16 bytes share no block of 16 tokens. An opening differs within
13: "Text", a space, at most seven digits and a space.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from time import monotonic

from loadgen.context import Context, Document, Question
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import Tokens
from loadgen.workload.passages import (
    PARAGRAPH_BREAK,
    Passage,
    PassageLengths,
    composable_passages,
    passages_of,
    walk,
)
from loadgen.workload.settings import MIN_CONTEXT_TOKENS, WorkloadSettings, random_bits

QUESTION_MARKER = "\n\nQuestion: "
HEAD_BYTES = 16
OPENING = "Text "
TITLE_CHARACTERS = 80
CACHED_CHARACTERS = 16_000_000
SAMPLED_DOCUMENTS = 64
QUESTION_SOURCES = 8
UNLIMITED = sys.maxsize
SYSTEM_OPENING = "Answer from the text that follows these instructions."
SYSTEM_INDEX = -1
"""Of no context: what the passages of the system prompt are chosen by."""


def join_prompt(context: str, question: str) -> str:
    """Context first and unchanged, question last: what requests share is a prefix."""
    return f"{context}{QUESTION_MARKER}{question}"


def bare_prompt(question: str) -> str:
    """The prompt of a question that has no context."""
    return QUESTION_MARKER.lstrip() + question


@dataclass(frozen=True, slots=True)
class QuestionedContext:
    """A context with its questions, whose texts all differ."""

    context: Context
    questions: tuple[Question, ...]

    def ask(self, number: int) -> tuple[str, str]:
        """Id and text of the context's question `number`, each text another one for ever.

        When the questions are used up they come again with a new ending and `~2`, `~3`, ... in
        the id.
        """
        again, position = divmod(number, len(self.questions))
        question = self.questions[position]
        if again == 0:
            return question.question_id, question.text
        version = again + 1
        return f"{question.question_id}~{version}", question.text + variation(version)


def variation(version: int) -> str:
    """What is appended to a question that is asked again."""
    return f" Answer in a new way, version {version}."


def document_opening(index: int, document: Document) -> str:
    """The first sentence of the context `index` where its document needs one."""
    return f"{OPENING}{index} is about {_subject(document)}."


def composed_opening(index: int, first: Document) -> str:
    """The first sentence of a composed context; `first` is where its first passage is from."""
    return f"{OPENING}{index} begins with a passage on {_subject(first)}."


def needing_opening(documents: Sequence[Document]) -> set[int]:
    """The documents that begin like another one, or like an opening."""
    heads = [_head(document.text) for document in documents]
    often = Counter(heads)
    return {
        index
        for index, (head, document) in enumerate(zip(heads, documents, strict=True))
        if often[head] > 1 or document.text.startswith(OPENING)
    }


def _head(text: str) -> bytes:
    return join_prompt(text[:HEAD_BYTES], "").encode()[:HEAD_BYTES]


def _subject(document: Document) -> str:
    return document.title[:TITLE_CHARACTERS].strip()


@dataclass(frozen=True, slots=True)
class Piece:
    """A paragraph with its tokens and those of a break after it."""

    text: str
    tokens: int
    break_tokens: int
    document_index: int


class ContextSource:
    """Contexts by index, made when first asked for, the latest used ones kept.

    The first ones are the documents, under their own ids; the rest are composed and called
    `mix-<index>`. The same corpus, settings and tokens give the same texts everywhere. No two
    share their first 16 tokens: a composed context opens with its number, and so does a document
    that begins like another one.
    """

    def __init__(self, corpus: Corpus, settings: WorkloadSettings, tokens: Tokens) -> None:
        self.corpus = corpus
        self._settings = settings
        self._tokens = tokens
        self._lengths = PassageLengths(tokens)
        self._passages = composable_passages(corpus.documents)
        self._sources = {passage.document_index for passage in self._passages}
        self._needing_opening = needing_opening(corpus.documents)
        self._mix = _unused_prefix(corpus.documents)
        self._index_of = {document.doc_id: at for at, document in enumerate(corpus.documents)}
        self._mean_tokens = 0
        self._pages: dict[int, QuestionedContext] = {}  # ordered by last use
        self._characters = 0

    def context(self, index: int) -> Context:
        """The context with this index."""
        return self.page(index).context

    def page(self, index: int) -> QuestionedContext:
        """The context with this index and its questions."""
        page = self._pages.pop(index, None)
        if page is None:
            page = self._make(index)
            self._characters += len(page.context.text)
            self._evict()
        self._pages[index] = page
        return page

    def system_prompt(self) -> str:
        """What all prompts begin with, `system_tokens` long; empty where there is none."""
        pieces = chain(
            [self._opening(SYSTEM_OPENING, 0)], map(self._piece, self._shuffled(SYSTEM_INDEX))
        )
        return self._join(pieces, self._settings.system_tokens)[0]

    def warm(self, budget_s: float) -> None:
        """Make the first contexts beforehand, for at most about `budget_s` seconds."""
        end_s = monotonic() + budget_s
        for index in range(self._settings.contexts):
            if monotonic() > end_s or self._characters > CACHED_CHARACTERS // 2:
                return
            self.page(index)

    def context_id(self, index: int) -> str:
        """The id of the context with this index; nothing is made."""
        documents = self.corpus.documents
        return documents[index].doc_id if index < len(documents) else f"{self._mix}{index:05d}"

    def index_of(self, doc_id: str) -> int | None:
        """The index of the context that is this document, None where the corpus has no such."""
        return self._index_of.get(doc_id)

    def drawn_tokens(self, index: int) -> int | None:
        """The length that `context_tokens` gives this context, never exceeded; None without."""
        span = self._settings.context_tokens
        return (
            None if span is None else span.pick(random_bits(self._settings.seed, "length", index))
        )

    def _evict(self) -> None:
        while self._characters > CACHED_CHARACTERS and self._pages:
            oldest = self._pages.pop(next(iter(self._pages)))
            self._characters -= len(oldest.context.text)

    def _make(self, index: int) -> QuestionedContext:
        is_document = index < len(self.corpus.documents)
        return self._from_document(index) if is_document else self._compose(index)

    def _from_document(self, index: int) -> QuestionedContext:
        document = self.corpus.documents[index]
        pieces: Iterable[Piece] = map(self._piece, passages_of(document, index))
        if index in self._needing_opening:
            pieces = chain([self._opening(document_opening(index, document), index)], pieces)
        target = self.drawn_tokens(index)
        if target is not None:
            pieces = chain(pieces, self._others(index))
        text, total, _ = self._join(pieces, target or UNLIMITED)
        context = Context(document.doc_id, text, total)
        return QuestionedContext(context, self._questions([index]))

    def _compose(self, index: int) -> QuestionedContext:
        passages = self._shuffled(index)
        first = next(passages)
        text = composed_opening(index, self.corpus.documents[first.document_index])
        pieces = chain(
            [self._opening(text, first.document_index)],
            map(self._piece, chain([first], passages)),
        )
        text, total, sources = self._join(pieces, self.drawn_tokens(index) or self._mean())
        context = Context(self.context_id(index), text, total)
        return QuestionedContext(context, self._questions(sources))

    def _join(self, pieces: Iterable[Piece], target: int) -> tuple[str, int, dict[int, None]]:
        """Take pieces until `target` tokens are reached, never more, the last one cut.

        Returns the text, its tokens and the documents that the pieces come from.
        """
        texts: list[str] = []
        sources: dict[int, None] = {}
        total = gap = 0
        for piece in pieces:
            room = target - total - gap
            if room <= 0:
                break
            fits = piece.tokens <= room
            text = piece.text if fits else self._tokens.cut(piece.text, room)
            if not fits and not text:
                break
            texts.append(text)
            sources[piece.document_index] = None
            total += gap + (piece.tokens if fits else min(self._tokens.count(text), room))
            gap = piece.break_tokens
            if not fits:
                break
        return PARAGRAPH_BREAK.join(texts), total, sources

    def _piece(self, passage: Passage) -> Piece:
        tokens = self._lengths.paragraph_tokens(passage.text)
        return Piece(
            passage.text, tokens, self._lengths.break_tokens(passage.text), passage.document_index
        )

    def _opening(self, text: str, document_index: int) -> Piece:
        # Not by `_lengths`, which remembers: there are as many openings as contexts.
        return Piece(
            text, self._tokens.count(text), self._lengths.break_tokens(text), document_index
        )

    def _shuffled(self, index: int) -> Iterator[Passage]:
        number = random_bits(self._settings.seed, "passages", index)
        return map(self._passages.__getitem__, walk(len(self._passages), number))

    def _others(self, index: int) -> Iterator[Piece]:
        """Paragraphs of the other documents, or of this one where there is no other."""
        alone = self._sources <= {index}
        passages = self._shuffled(index)
        return (self._piece(each) for each in passages if alone or each.document_index != index)

    def _questions(self, document_indexes: Iterable[int]) -> tuple[Question, ...]:
        """Questions of the first documents named, each text once: none is asked twice."""
        sources = islice(document_indexes, QUESTION_SOURCES)
        doc_ids = (self.corpus.documents[index].doc_id for index in sources)
        found: dict[str, Question] = {}
        for question in chain.from_iterable(map(self.corpus.questions.__getitem__, doc_ids)):
            found.setdefault(question.text, question)
        return tuple(found.values())

    def _mean(self) -> int:
        """Mean tokens of the documents, or of an even sample of a large corpus."""
        if not self._mean_tokens:
            documents = self.corpus.documents
            sample = range(0, len(documents), -(-len(documents) // SAMPLED_DOCUMENTS))
            total = sum(self._whole_tokens(index) for index in sample)
            self._mean_tokens = max(total // len(sample), MIN_CONTEXT_TOKENS)
        return self._mean_tokens

    def _whole_tokens(self, index: int) -> int:
        pieces = map(self._piece, passages_of(self.corpus.documents[index], index))
        return self._join(pieces, UNLIMITED)[1]


def _unused_prefix(documents: Iterable[Document]) -> str:
    prefix = "mix-"
    while any(document.doc_id.startswith(prefix) for document in documents):
        prefix = "x" + prefix
    return prefix
