"""The requests of a trace, made as they are needed."""

from collections.abc import Iterator
from zlib import crc32

from loadgen.context import Request
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import Tokens
from loadgen.workload.trace.entry import TraceEntry
from loadgen.workload.trace.selection import Selection
from loadgen.workload.trace.words import Words


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
