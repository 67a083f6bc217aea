"""One question all the way: its document found, put before it, the answer streamed and shown."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from loadgen.client.client import StreamingClient
from loadgen.client.exchange import Exchange
from loadgen.client.failures import StreamFailure
from loadgen.client.protocol import decode
from loadgen.client.retrieval import Retrieval, RetrievalClient
from loadgen.launch.terminal import printable, say
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
            nothing = (None,) * 5
            return Asked(question, None, None, None, "", *nothing, failure.outcome, str(failure))
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


class AskPrinter:
    """Prints questions one after another; several are told apart by their own text."""

    def __init__(self, as_json: bool, several: bool) -> None:
        self._as_json = as_json
        self._several = several

    def begin(self, question: str) -> None:
        """The next question is on its way."""
        if self._several and not self._as_json:
            print(f"> {printable(question)}", flush=True)

    def found(self, found: Retrieval) -> None:
        """Its document is known, or that there is none."""
        if self._as_json:
            return
        if found.doc_id is None:
            print(f"no document (score {found.score:.3f}): asked without one\n", flush=True)
        else:
            print(f"document {printable(found.doc_id)} (score {found.score:.3f})\n", flush=True)

    def speak(self, text: str) -> None:
        """A piece of the answer has come."""
        if not self._as_json:
            print(printable(text), end="", flush=True)

    def end(self, asked: Asked) -> None:
        """It is over, well or not."""
        if self._as_json:
            print(json.dumps(asdict(asked)), flush=True)
        elif asked.retrieval_ms is not None:
            print(f"\n\n{figures(asked)}" + ("\n" if self._several else ""), flush=True)
        if asked.outcome != "ok":
            happened = "the answer broke off" if asked.answer else "no answer"
            say(f"{happened}: {asked.error}")


def figures(asked: Asked) -> str:
    """One line; what is not known is left out."""
    parts = [f"retrieval {asked.retrieval_ms:.0f} ms" if asked.retrieval_ms is not None else ""]
    if asked.ttft_ms is not None:
        parts.append(f"TTFT with it {asked.ttft_ms:.0f} ms")
    if asked.prompt_tokens is not None:
        cached = "" if asked.cached_tokens is None else f" ({asked.cached_tokens} cached)"
        parts.append(f"{asked.prompt_tokens} prompt tokens{cached}")
    if asked.output_tokens is not None:
        parts.append(f"{asked.output_tokens} output tokens")
    if asked.tokens_per_s is not None:
        parts.append(f"{asked.tokens_per_s:.1f} tokens/s")
    return ", ".join(filter(None, parts))
