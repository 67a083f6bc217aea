"""One question all the way: its document found, put before it, and the answer streamed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.failures import StreamFailure
from loadgen.client.protocol import decode
from loadgen.client.retrieval import Retrieval, RetrievalClient
from loadgen.record import Outcome
from loadgen.swarm.sending.labels import Labels
from loadgen.workload.contexts import bare_prompt, join_prompt


class SpokenExchange(Exchange):
    """Hands the text of each event on as it arrives."""

    def __init__(self, speak: Callable[[str], None]) -> None:
        super().__init__()
        self._speak = speak

    def take(self, payload: bytes, received_at: float) -> None:
        """Take in one event of the stream. Raises Malformed."""
        super().take(payload, received_at)
        if text := text_of(payload):
            self._speak(text)


def text_of(payload: bytes) -> str:
    """What a reader sees of one event; "" for anything else. Raises Malformed."""
    choices = decode(payload).get("choices") or [{}]
    delta = choices[0].get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choices[0].get("text")
    return text if isinstance(text, str) else ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of a question.

    `doc_id` is None where no document was found, and the question went out alone. `ttft_ms` counts
    from before the retrieval. None stands for what is not known or did not happen.
    """

    question: str
    doc_id: str | None
    score: float | None
    retrieval_ms: float | None
    answer: str
    ttft_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    tokens_per_s: float | None
    outcome: Outcome
    error: str


class Pipeline:
    """Asks a RAG service, then an engine; both clients must be open."""

    def __init__(
        self,
        retrieval: RetrievalClient,
        client: StreamingClient,
        labels: Labels,
        output_tokens: int,
    ) -> None:
        self._retrieval = retrieval
        self._client = client
        self._labels = labels
        self._output_tokens = output_tokens

    async def ask(
        self, question: str, found: Callable[[Retrieval], None], speak: Callable[[str], None]
    ) -> Asked:
        """Ask one question; `found` and `speak` are told what is known as soon as it is."""
        began_at = time.perf_counter()
        try:
            retrieval = await self._retrieval.retrieve(question)
        except StreamFailure as failure:
            return _unanswered(question, failure)
        found(retrieval)
        texts: list[str] = []

        def take(text: str) -> None:
            texts.append(text)
            speak(text)

        exchange = SpokenExchange(take)
        await self._stream(question, retrieval, exchange)
        return _asked(question, retrieval, "".join(texts), exchange, began_at)

    async def _stream(self, question: str, found: Retrieval, exchange: SpokenExchange) -> None:
        alone = found.doc_id is None
        prompt = bare_prompt(question) if alone else join_prompt(found.text, question)
        extra, _ = self._labels.tag(found.doc_id)
        await self._client.stream(prompt, self._output_tokens, exchange, extra)


def _unanswered(question: str, failure: StreamFailure) -> Asked:
    nothing = (None,) * 5
    return Asked(question, None, None, None, "", *nothing, failure.outcome, str(failure))


def _asked(
    question: str, found: Retrieval, answer: str, exchange: SpokenExchange, began_at: float
) -> Asked:
    first_at, tpot_ms = exchange.first_token_at, exchange.tpot_ms
    return Asked(
        question=question,
        doc_id=found.doc_id,
        score=found.score,
        retrieval_ms=found.retrieval_ms,
        answer=answer,
        ttft_ms=None if first_at is None else (first_at - began_at) * 1000,
        prompt_tokens=exchange.prompt_tokens,
        cached_tokens=exchange.cached_tokens,
        output_tokens=exchange.output_tokens,
        tokens_per_s=1000 / tpot_ms if tpot_ms else None,
        outcome=exchange.outcome,
        error=exchange.error,
    )
