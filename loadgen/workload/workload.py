"""Requests, one after the other or in batches: the workload as a user of the swarm sees it."""

from collections.abc import Iterator

from loadgen.context import Batch, Draw, Request
from loadgen.workload.batches import Batching, batched_draws
from loadgen.workload.contexts import ContextBook
from loadgen.workload.corpus import Corpus
from loadgen.workload.dice import roll
from loadgen.workload.fit import check_fit
from loadgen.workload.lengths import Tokens
from loadgen.workload.mistake import is_mistaken, other_context
from loadgen.workload.prompt import bare_prompt, join_prompt
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.stream import Stream


class Workload:
    """One worker's share of the swarm's requests; `stream` gives its draws, `book` its contexts.

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
        worker_index: int = 0,
        workers: int = 1,
        wrong_labels: bool = False,
    ) -> None:
        self.settings = settings
        self._wrong_labels = wrong_labels
        self._share = worker_index, workers
        self.stream = Stream(settings, worker_index, workers)
        self.book = ContextBook(corpus, settings, tokens)
        self._tokens = tokens

    def next_request(self) -> Request:
        """The next request this worker is to send."""
        return self.request_for(next(self.stream))

    def requests(self) -> Iterator[Request]:
        """The requests this worker is to send, without an end."""
        return map(self.request_for, self.stream)

    def batches(self, batching: Batching) -> Iterator[Batch]:
        """The batches this worker is to send; they end where `batching` has a limit."""
        for index, draws in batched_draws(self.settings, batching, *self._share):
            yield Batch(index, tuple(map(self.request_for, draws)))

    def request_for(self, draw: Draw) -> Request:
        """The request of a draw; a repeat has its root's text, question and length."""
        page = self.book.page(draw.context_index)
        question_id, question = page.ask(draw.question_number)
        return Request(
            index=draw.index,
            root=draw.root,
            context_id=page.context.context_id,
            question_id=question_id,
            question=question,
            prompt=join_prompt(page.context.text, question),
            label=self._label(draw),
            max_tokens=self._max_tokens(draw.root),
        )

    def prompt_behind(self, doc_id: str | None, text: str, question: str) -> str:
        """A question behind a document, which is one of this workload's contexts by its id.

        Behind `text` where the corpus has no such document; None is no document.
        """
        if doc_id is None:
            return bare_prompt(question)
        index = self.book.index_of(doc_id)
        return join_prompt(text if index is None else self.book.context(index).text, question)

    def mistake(self, request: Request, share: float) -> str | None:
        """The wrong context that this request gets on purpose, as a `share` of all requests do.

        It is one of the others that the run is about. None for the rest of the requests.
        """
        index = self.book.index_of(request.context_id)
        if index is None or not is_mistaken(self.settings.seed, share, request.root):
            return None
        return self._other_id(request.root, index)

    def warm(self, budget_s: float) -> None:
        """Make the first contexts beforehand, for at most about `budget_s` seconds."""
        self.book.warm(budget_s)

    def check_fit(
        self, max_model_len: int, cache_tokens: int | None, template_tokens: int = 0
    ) -> None:
        """Raise ContextTooLong when context, question and reply of some request do not fit.

        All in tokens: the model's window, what the engine's own KV cache holds (None: not known),
        and what the host's chat template adds to a prompt.
        """
        check_fit(
            self.book, self.settings, self._tokens, max_model_len, cache_tokens, template_tokens
        )

    def _label(self, draw: Draw) -> str:
        if self._wrong_labels:
            return self._other_id(draw.root, draw.context_index)
        return self.book.context_id(draw.context_index)

    def _other_id(self, root: int, index: int) -> str:
        settings = self.settings
        return self.book.context_id(other_context(settings.seed, settings.contexts, root, index))

    def _max_tokens(self, root: int) -> int:
        span = self.settings.output_tokens
        if span.low == span.high:
            return span.low
        return span.pick(roll(self.settings.seed, "output", root))
