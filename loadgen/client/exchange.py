"""One request and what has been seen of its reply so far."""

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

from loadgen.client.protocol import TOKEN, Event, Usage, interpret
from loadgen.record import Outcome

FAILED_FINISHES = frozenset({"abort", "error"})
"""Finish reasons by which an engine says that it gave the request up."""


@dataclass(slots=True, eq=False)
class Exchange:
    """Filled as bytes arrive, so that a cancelled request still tells what it saw.

    All `*_at` and `token_times` are `time.perf_counter()` seconds, None until they happen.
    `sent_at` is taken right before the request is handed to the transport, so opening a
    connection, where no idle one is left, counts as part of the request. `token_times` holds the
    arrival of each event that brought output; events that arrive together share their time.
    `resends` counts how often a closed connection made the transport send the request again.
    `end_at` of a complete reply is the arrival of its last event, else when its end was noticed.
    Token counts are the host's and None where it does not say. `outcome` is pessimistic until the
    end is known.
    """

    sent_at: float | None = None
    token_times: "array[float]" = field(default_factory=lambda: array("d"))
    end_at: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    outcome: Outcome = "cancelled"
    error: str = ""
    ended_well: bool = False
    resends: int = 0

    @property
    def first_token_at(self) -> float | None:
        """When the first event with output arrived."""
        return self.token_times[0] if self.token_times else None

    @property
    def gaps_ms(self) -> list[float]:
        """Every gap between neighbouring events with output, in order."""
        return [(later - earlier) * 1000 for earlier, later in pairwise(self.token_times)]

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first: (last - first token) / (output_tokens - 1).

        None when the host does not state the output tokens, when there are fewer than two, or
        when all came in one event, where no time between tokens was seen.
        """
        if self.output_tokens is None or self.output_tokens < 2 or len(self.token_times) < 2:
            return None
        elapsed_s = self.token_times[-1] - self.token_times[0]
        return elapsed_s * 1000 / (self.output_tokens - 1)

    @property
    def complete(self) -> bool:
        """Whether the host finished the reply and closed it by its usage or `[DONE]`."""
        return (
            self.ended_well
            and self.finish_reason is not None
            and self.finish_reason not in FAILED_FINISHES
        )

    @property
    def lack(self) -> str:
        """What a reply that has ended lacks to be complete, in words."""
        if self.finish_reason is None:
            return "the stream ended without a finish reason"
        if not self.ended_well:
            return "the stream ended without usage or [DONE]"
        return f"the engine gave up: finish reason {self.finish_reason!r}"

    def take(self, payload: bytes, received_at: float) -> None:
        """Take in one event of the stream. Raises Malformed."""
        self.absorb(interpret(payload), received_at)

    def take_tokens(self, tokens: int, received_at: float) -> None:
        """Take in so many events that arrived together and are tokens and nothing else."""
        self.token_times.extend([received_at] * tokens)

    def absorb(self, event: Event, received_at: float) -> None:
        """Take in one event that arrived at `received_at`.

        An event of a choice whose running usage has grown brought tokens, even without text.
        """
        if event is TOKEN:
            self.token_times.append(received_at)
            return
        grown = event.usage is not None and self._count(event.usage)
        if event.content or (grown and event.in_choice):
            self.token_times.append(received_at)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
        if event.usage is not None and self.finish_reason is not None:
            self.close(received_at)

    def close(self, received_at: float) -> None:
        """The closing usage or `[DONE]` arrived."""
        self.ended_well = True
        self.end_at = received_at

    def _count(self, usage: Usage) -> bool:
        """Keep what the host states; true when there are more output tokens than before.

        A first count behind tokens that came without one says nothing of its own event.
        """
        is_running = self.output_tokens is not None or not self.token_times
        before = self.output_tokens or 0
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.cached_tokens is not None:
            self.cached_tokens = usage.cached_tokens
        if usage.output_tokens is not None:
            self.output_tokens = usage.output_tokens
        return is_running and (self.output_tokens or 0) > before
