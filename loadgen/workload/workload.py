"""Requests, one after the other or in batches: the workload as a user of the swarm sees it."""

from collections.abc import Iterator
from dataclasses import replace

from loadgen.context import Batch, Draw, Request
from loadgen.errors import ContextTooLong
from loadgen.workload.batches import Batching, batched_draws
from loadgen.workload.contexts import (
    QUESTION_MARKER,
    ContextSource,
    bare_prompt,
    join_prompt,
    variation,
)
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import Tokens
from loadgen.workload.passages import PARAGRAPH_BREAK
from loadgen.workload.settings import MIN_CONTEXT_TOKENS, WorkloadSettings, random_bits
from loadgen.workload.stream import Stream

_SIDES = 2**64
# Counting a large corpus would take long. Documents are looked at from the longest in bytes on,
# so many of them at most, and only those with more bytes than there is room for tokens.
CHECKED_DOCUMENTS = 64
OPENING_BYTES = 128
LATE_VERSION = 1_000_000


def is_mistaken(seed: int, share: float, root: int) -> bool:
    """Whether the request with this root is one of a share (0 to 1) of all."""
    return random_bits(seed, "mistake", root) < share * _SIDES


def other_context(seed: int, contexts: int, root: int, index: int) -> int:
    """Any of `contexts`, two at least, but the one with this index; all equally likely."""
    other = random_bits(seed, "other", root) % (contexts - 1)
    return other + (other >= index)


def _longest_question(contexts: ContextSource, tokens: Tokens) -> int:
    texts = (question.text for some in contexts.corpus.questions.values() for question in some)
    parts = QUESTION_MARKER, max(texts, key=len), variation(LATE_VERSION)
    return sum(map(tokens.count, parts))


def _too_long(
    contexts: ContextSource, settings: WorkloadSettings, room: int
) -> tuple[str, int] | None:
    """Id and tokens of a context that is longer than `room`."""
    if settings.context_tokens is None:
        return _too_long_document(contexts, settings, room)
    if settings.context_tokens.high <= room:
        return None
    lengths = ((index, contexts.drawn_tokens(index) or 0) for index in range(settings.contexts))
    found = ((contexts.context_id(index), length) for index, length in lengths if length > room)
    return next(found, None)


def _too_long_document(
    contexts: ContextSource, settings: WorkloadSettings, room: int
) -> tuple[str, int] | None:
    # A composed context is as long as the mean document: it fits where the longest one does.
    documents = contexts.corpus.documents[: settings.contexts]
    sizes = ((len(document.text.encode()), index) for index, document in enumerate(documents))
    longest = sorted(((size, i) for size, i in sizes if size + OPENING_BYTES > room), reverse=True)
    longest_ones = (contexts.context(index) for _, index in longest[:CHECKED_DOCUMENTS])
    found = ((each.context_id, each.tokens) for each in longest_ones if each.tokens > room)
    return next(found, None)


def _bounds(max_model_len: int, cache_tokens: int | None) -> str:
    window = f"the model's window is {max_model_len} tokens"
    return window if cache_tokens is None else f"{window} and the KV cache holds {cache_tokens}"


def _remedy(room: int, needed: int, cache_tokens: int | None, system: int) -> str:
    shorter = f"give --context-tokens {room} or less" if room >= MIN_CONTEXT_TOKENS else ""
    lower = "lower --system-tokens" if system else ""
    larger = "raise --kv-tokens" if cache_tokens is not None and cache_tokens < needed else ""
    return " or ".join(filter(None, (shorter or lower or "lower --output-tokens", larger)))


class Workload:
    """One worker's share of the swarm's requests; `stream` gives draws, `contexts` texts.

    Whoever must know whether a request is a repeat takes `draw = next(workload.stream)`, compares
    `draw.root` with `draw.index` and calls `request_for(draw)`. A swarm takes either `requests`
    or `batches`: both cut up the same stream, but give each worker other parts of it. With
    `wrong_labels` each request is labelled with another context than its own.
    """

    def __init__(
        self,
        corpus: Corpus,
        settings: WorkloadSettings,
        tokens: Tokens,
        *,
        worker_index: int = 0,
        workers: int = 1,
        wrong_labels: bool = False,
    ) -> None:
        self.settings = settings
        self._wrong_labels = wrong_labels
        self._share = worker_index, workers
        self.stream = Stream(settings, worker_index, workers)
        self.contexts = ContextSource(corpus, settings, tokens)
        self._tokens = tokens
        system = self.contexts.system_prompt()
        self._preamble = f"{system}{PARAGRAPH_BREAK}" if system else ""

    def requests(self) -> Iterator[Request]:
        """The requests this worker is to send, without an end."""
        return map(self.request_for, self.stream)

    def batches(self, batching: Batching) -> Iterator[Batch]:
        """The batches this worker is to send; they end where `batching` has a limit."""
        for index, draws in batched_draws(self.settings, batching, *self._share):
            yield Batch(index, tuple(map(self.request_for, draws)))

    def request_for(self, draw: Draw) -> Request:
        """The request of a draw; a repeat has its root's text, question and length."""
        page = self.contexts.page(draw.context_index)
        question_id, question = page.ask(draw.question_number)
        return Request(
            index=draw.index,
            root=draw.root,
            context_id=page.context.context_id,
            question_id=question_id,
            question=question,
            prompt=self._preamble + join_prompt(page.context.text, question),
            label=self._label(draw),
            max_tokens=self._max_tokens(draw.root),
        )

    def prompt_behind(self, doc_id: str | None, text: str, question: str) -> str:
        """A question behind a document, which is one of this workload's contexts by its id.

        Behind `text` where the corpus has no such document; None is no document.
        """
        if doc_id is None:
            return self._preamble + bare_prompt(question)
        index = self.contexts.index_of(doc_id)
        known = text if index is None else self.contexts.context(index).text
        return self._preamble + join_prompt(known, question)

    def mistake(self, request: Request, share: float) -> str | None:
        """The wrong context that this request gets on purpose, as a `share` of all requests do.

        It is one of the others that the run is about. None for the rest of the requests.
        """
        index = self.contexts.index_of(request.context_id)
        if index is None or not is_mistaken(self.settings.seed, share, request.root):
            return None
        return self._other_id(request.root, index)

    def warm(self, budget_s: float) -> None:
        """Make the first contexts beforehand, for at most about `budget_s` seconds."""
        self.contexts.warm(budget_s)

    def check_fit(
        self, max_model_len: int, cache_tokens: int | None, template_tokens: int = 0
    ) -> None:
        """Raise ContextTooLong when all that some request has, and its reply, do not fit.

        All in tokens: the model's window, what the engine's own KV cache holds (None: not known),
        and what the host's chat template adds to a prompt.
        """
        limit = max_model_len if cache_tokens is None else min(max_model_len, cache_tokens)
        question = _longest_question(self.contexts, self._tokens) + template_tokens
        reply = self.settings.output_tokens.high
        system = self._tokens.count(self._preamble) if self._preamble else 0
        room = limit - system - question - reply
        found = _too_long(self.contexts, self.settings, room)
        if found is None:
            return
        context_id, length = found
        needed = length + system + question + reply
        before = f"system prompt ({system}), " if system else ""
        raise ContextTooLong(
            f"context {context_id!r} has {length} tokens, with {before}question ({question}) and"
            f" reply ({reply}) {needed}, but {_bounds(max_model_len, cache_tokens)}: "
            f"{_remedy(room, needed, cache_tokens, system)}"
        )

    def least_cache_tokens(self, of_all_documents: bool = False) -> int:
        """The smallest cache that `check_fit` takes, of a model of any window; where any document
        may be found, for all of them."""
        settings = self.settings
        if of_all_documents:
            settings = replace(settings, contexts=len(self.contexts.corpus.documents))
        room = 0
        while (found := _too_long(self.contexts, settings, room)) is not None:
            _, room = found
        system = self._tokens.count(self._preamble) if self._preamble else 0
        question = _longest_question(self.contexts, self._tokens)
        return room + system + question + settings.output_tokens.high

    def _label(self, draw: Draw) -> str:
        if self._wrong_labels:
            return self._other_id(draw.root, draw.context_index)
        return self.contexts.context_id(draw.context_index)

    def _other_id(self, root: int, index: int) -> str:
        settings = self.settings
        return self.contexts.context_id(
            other_context(settings.seed, settings.contexts, root, index)
        )

    def _max_tokens(self, root: int) -> int:
        span = self.settings.output_tokens
        if span.low == span.high:
            return span.low
        return span.pick(random_bits(self.settings.seed, "output", root))
