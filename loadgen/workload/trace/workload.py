"""The requests of a trace, made as they are needed."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random
from zlib import crc32

from loadgen.context import Document, Request
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import Tokens
from loadgen.workload.settings import random_bits
from loadgen.workload.trace.reader import TraceEntry
from loadgen.workload.trace.selection import Selection

ENOUGH_WORDS = 512
CONSIDERED_WORDS = 20_000
CACHED_CHARACTERS = 16_000_000
_WORD = re.compile(r"[A-Za-z]{2,12}")


class Words:
    """Texts of words that are one token each, so that lengths add up without counting.

    A text begins with a space: what stands before it does not change its tokens, and texts can be
    put behind one another in any order.
    """

    def __init__(self, documents: Iterable[Document], tokens: Tokens, seed: int) -> None:
        self._seed = seed
        self._words = tuple(islice(_single_tokens(documents, tokens), ENOUGH_WORDS)) or (" the",)
        self._texts: dict[int, str] = {}  # ordered by last use
        self._characters = 0

    def block(self, block_id: int, tokens: int) -> str:
        """The text of a shared block; a shorter length of the same block is a prefix of it."""
        text = self._texts.pop(block_id, None)
        if text is None or text.count(" ") < tokens:
            self._characters -= len(text or "")
            text = self.text("block", block_id, tokens)
            self._characters += len(text)
        self._texts[block_id] = text
        self._evict()
        return text if text.count(" ") == tokens else _first(text, tokens)

    def text(self, kind: str, number: int, tokens: int) -> str:
        """The text named by kind and number."""
        return "".join(Random(random_bits(self._seed, kind, number)).choices(self._words, k=tokens))

    def _evict(self) -> None:
        while self._characters > CACHED_CHARACTERS and len(self._texts) > 1:
            self._characters -= len(self._texts.pop(next(iter(self._texts))))


def _first(text: str, words: int) -> str:
    end = -1
    for _ in range(words + 1):
        end = text.find(" ", end + 1)
    return text[:end]


def _single_tokens(documents: Iterable[Document], tokens: Tokens) -> Iterator[str]:
    """Words that with the space before them are one token, also behind another word."""
    for word in islice(_words(documents), CONSIDERED_WORDS):
        spaced = f" {word}"
        if tokens.count(spaced) == 1 and tokens.count(spaced * 2) == 2:
            yield spaced


def _words(documents: Iterable[Document]) -> Iterator[str]:
    seen: set[str] = set()
    for document in documents:
        for match in _WORD.finditer(document.text):
            if match[0] not in seen:
                seen.add(match[0])
                yield match[0]


class TraceWorkload:
    """One worker's share of a replayed trace.

    Every worker walks all entries and keeps those that it owns, so that together they send each
    entry once. `common` are the blocks that name no context, as most entries share them. Texts are
    made of the corpus's words from the seed: equal block ids give equal bytes, and everything else
    is unlike everything else.
    """

    def __init__(
        self,
        corpus: Corpus,
        selection: Selection,
        common: frozenset[int],
        tokens: Tokens,
        *,
        seed: int = 0,
        worker_index: int = 0,
        workers: int = 1,
    ) -> None:
        self._selection = selection
        self._common = common
        self._tokens = tokens
        self._words = Words(corpus.documents, tokens, seed)
        self._share = worker_index, workers

    def requests(self) -> Iterator[Request]:
        """The requests this worker is to send, in order, to the end of the trace."""
        worker_index, workers = self._share
        for index, entry in enumerate(self._selection.entries()):
            if owned(index, entry, workers) == worker_index:
                yield self.request_for(index, entry)

    def warm(self, budget_s: float) -> None:
        """Nothing is made beforehand: texts are cheap."""

    def request_for(self, index: int, entry: TraceEntry) -> Request:
        """The request of an entry."""
        context_id = self._context_id(entry)
        return Request(
            index=index,
            root=index,
            context_id=context_id,
            question_id=f"entry-{index}",
            question="",
            prompt=entry.prompt or self._prompt(index, entry),
            label=context_id,
            max_tokens=self._output_tokens(entry),
            session_id=entry.session_id,
        )

    def _prompt(self, index: int, entry: TraceEntry) -> str:
        """Its blocks, and for what they do not cover a text of its own."""
        texts, left = [], entry.input_tokens
        for block_id in entry.block_ids:
            length = min(left, entry.block_tokens)
            texts.append(self._words.block(block_id, length))
            left -= length
        if left:
            texts.append(self._words.text("entry", index, left))
        return "".join(texts)

    def _context_id(self, entry: TraceEntry) -> str:
        """The session, else the first block that is not everybody's; empty where there is none."""
        if entry.session_id:
            return entry.session_id
        own = (block for block in entry.block_ids if block not in self._common)
        block = next(own, None)
        return "" if block is None else f"block-{block}"

    def _output_tokens(self, entry: TraceEntry) -> int:
        return max(1, self._tokens.count(entry.reply)) if entry.reply else entry.output_tokens


def owned(index: int, entry: TraceEntry, workers: int) -> int:
    """Which worker sends an entry: all turns of a conversation are one worker's."""
    return crc32(entry.session_id.encode()) % workers if entry.session_id else index % workers


class TracePacer:
    """The times of a trace as a schedule: its n-th arrival is that of the n-th entry."""

    def __init__(self, selection: Selection) -> None:
        self._entries = selection.entries()
        self._last_s = 0.0

    def next_s(self) -> float:
        """Intended time in seconds; at the end of the trace that of its last entry."""
        entry = next(self._entries, None)
        if entry is not None and entry.at_s is not None:
            self._last_s = entry.at_s
        return self._last_s
