"""One request, or one call with a list of prompts, and what has been seen of its reply so far."""

import re
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Self

from loadgen.client.failures import Malformed, excerpt
from loadgen.client.finish import finish_words, is_good_finish
from loadgen.client.protocol import TOKEN, Event, Usage, choice_event, decode, interpret, usage_of
from loadgen.record import Outcome

MOSTLY = 0.8  # of all counted tokens: some events bring two


@dataclass(slots=True, eq=False)
class Exchange:
    """Filled as bytes arrive, so that a cancelled request still tells what it saw.

    All `*_at` and `token_times` are `time.perf_counter()` seconds, None until they happen.
    `sent_at` is taken right before the request is handed to the transport, so opening a
    connection, where no idle one is left, counts as part of the request. `token_times` holds the
    arrival of each event that brought output; events that arrive together share their time.
    `resends` counts how often a closed connection made the transport send the request again,
    `retries` how often it was tried again after a rejection; `served_by` is the engine's name where
    the reply has it.
    `end_at` of a complete reply is the arrival of its last event, else when its end was noticed.
    Token counts are the host's and None where it does not say. `outcome` is pessimistic until the
    end is known. `usage_runs_along` says that every event's usage counts its tokens, as asked for
    or as an event with output has shown.
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
    retries: int = 0
    served_by: str = ""
    usage_runs_along: bool = field(default=False, init=False)
    reasoning_tokens: int = field(default=0, init=False)
    _reasoning_events: int = field(default=0, init=False)
    _reasoning_since: int | None = field(default=None, init=False)
    _counted_events: int = field(default=0, init=False)
    _last_words: str = field(default="", init=False)

    @property
    def first_token_at(self) -> float | None:
        """When the first event with output arrived."""
        return self.token_times[0] if self.token_times else None

    @property
    def last_token_at(self) -> float | None:
        """When the last event with output arrived."""
        return self.token_times[-1] if self.token_times else None

    @property
    def times_of_replies(self) -> "tuple[array[float], ...]":
        """The one reply's."""
        return (self.token_times,)

    @property
    def gaps_ms(self) -> list[float]:
        """Every gap between neighbouring events with output, in order."""
        return [(later - earlier) * 1000 for earlier, later in pairwise(self.token_times)]

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first: (last - first token) / (tokens - 1).

        None when the host does not state the output tokens, none for its events included, or when
        all came in one event, where no time between tokens was seen. An event brings a token at
        least, whatever the host counts.
        """
        tokens, events = self.streamed_tokens, len(self.token_times)
        if not tokens or events < 2:
            return None
        elapsed_s = self.token_times[-1] - self.token_times[0]
        return elapsed_s * 1000 / (max(tokens, events) - 1)

    @property
    def streamed_tokens(self) -> int | None:
        """Output tokens that came in events: without reasoning that was counted and kept back.

        None where the host counts none, or streams a part of its reasoning, as a summary: that has
        fewer events for its tokens than the rest, or events of no name are too many for the rest.
        """
        if self.output_tokens is None or not self.reasoning_tokens:
            return self.output_tokens
        visible, events = self.output_tokens - self.reasoning_tokens, len(self.token_times)
        reasoning_events = self._reasoning_events
        if self._reasoning_since is not None:
            reasoning_events += events - self._reasoning_since
        if not reasoning_events:  # all in the text, or none of it
            if events <= visible:
                return visible
            return self.output_tokens if events >= MOSTLY * self.output_tokens else None
        if self.reasoning_tokens * (events - reasoning_events) > 2 * visible * reasoning_events:
            return None
        return self.output_tokens

    @property
    def complete(self) -> bool:
        """Whether the host finished the reply and closed it by its usage or `[DONE]`."""
        return self.ended_well and is_good_finish(self.finish_reason)

    is_over = complete

    @property
    def lack(self) -> str:
        """What a reply that has ended lacks to be complete, in words."""
        if self.finish_reason is None:
            return "the stream ended without a finish reason"
        if is_good_finish(self.finish_reason):
            return "the stream ended without usage or [DONE]"
        words = f"; the host said: {self._last_words}" if self._last_words else ""
        return finish_words(self.finish_reason) + words

    def take(self, payload: bytes, received_at: float) -> None:
        """Take in one event of the stream. Raises Malformed."""
        self.absorb(interpret(payload), received_at)

    def take_many(self, event: Event, count: int, received_at: float) -> None:
        """Take in so many events that arrived together and say the same, but for a usage, which is
        that of the last."""
        self.absorb(event, received_at)
        if count > 1 and event.content:
            self.token_times.extend([received_at] * (count - 1))
            if event.usage is not None:
                self._counted_events = len(self.token_times)

    def count_along(self, found: re.Match[bytes], names: tuple[str, ...]) -> None:
        """Take in the counts that came with the last tokens, groups of a match named after them."""
        self._counted_events = len(self.token_times)
        for name in names:
            setattr(self, name, int(found[name]))

    def absorb(self, event: Event, received_at: float) -> None:
        """Take in one event that arrived at `received_at`.

        An event of a choice whose running usage has grown brought tokens, even without text. A
        whole message behind tokens only repeats them.
        """
        if self._reasoning_since is not None and event.content and not event.is_reasoning:
            self._reasoning_events += len(self.token_times) - self._reasoning_since
            self._reasoning_since = None
        if event is TOKEN:
            self.token_times.append(received_at)
            return
        if event.is_whole and self.token_times:
            event = event._replace(content=False)
        if event.is_reasoning and self._reasoning_since is None:
            self._reasoning_since = len(self.token_times)
        if event.content or self._has_grown(event):
            if event.usage is not None and event.finish_reason is None:
                self.usage_runs_along |= (event.usage.output_tokens or 0) > (
                    self.output_tokens or 0
                )
            self.token_times.append(received_at)
        if event.finish_reason is not None and not self.is_given_up:
            self.finish_reason, self._last_words = event.finish_reason, event.words
        if event.usage is not None:
            self._count(event.usage)
            if self.finish_reason is not None:
                self.close(received_at)

    def begin_again(self) -> None:
        """The reply was a rejection without output; what it said is no part of the next one."""
        self.retries += 1
        self.status, self.served_by = None, ""
        self.finish_reason, self.ended_well, self.end_at = None, False, None
        self.prompt_tokens = self.cached_tokens = self.output_tokens = None
        self.reasoning_tokens = self._counted_events = 0

    @property
    def is_given_up(self) -> bool:
        """Whether the engine said that it gave the request up; a later word changes nothing."""
        return self.finish_reason is not None and not is_good_finish(self.finish_reason)

    def _has_grown(self, event: Event) -> bool:
        """Whether there is a token without text, by a usage that runs along with the tokens.

        One that came first or last only, or with some of the tokens, says nothing of its event.
        """
        if event.usage is None or not (event.in_choice and self.usage_runs_along):
            return False
        before = self.output_tokens or 0
        is_running = len(self.token_times) == self._counted_events
        if event.finish_reason is not None:
            is_running = is_running and before > 0
        return is_running and (event.usage.output_tokens or 0) > before

    def close(self, received_at: float) -> None:
        """The closing usage or `[DONE]` arrived."""
        self.ended_well = True
        self.end_at = received_at

    def end_of_body(self, received_at: float) -> None:
        """The body ended as it should: then counts that came before the finish closed the reply."""
        if self.finish_reason is not None and self.output_tokens is not None:
            self.ended_well = True
            self.end_at = self.end_at or received_at

    def succeed(self) -> None:
        """The reply is complete. A count that cannot be is left out, and told."""
        self.outcome = "ok"
        if not self.output_tokens and self.token_times:
            self.output_tokens = None  # which is told by the summary
        cached, prompt = self.cached_tokens, self.prompt_tokens
        if cached is not None and prompt is not None and cached > prompt:
            self.error = f"{cached} cached of {prompt} prompt tokens by the host: left out"
            self.cached_tokens = None

    def _count(self, usage: Usage) -> None:
        """Keep what the host states."""
        self._counted_events = len(self.token_times)
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.cached_tokens is not None:
            self.cached_tokens = usage.cached_tokens
        if usage.output_tokens is not None:
            self.output_tokens = usage.output_tokens
        if usage.reasoning_tokens:
            self.reasoning_tokens = usage.reasoning_tokens


class ListEvent(NamedTuple):
    """What one event says of some prompts, by their place in the list, or of the whole call."""

    replies: tuple[tuple[int, Event], ...]
    usage: Usage | None = None


@dataclass(slots=True, eq=False)
class ListExchange:
    """Filled as bytes arrive; times and outcome are those of the call, as in Exchange.

    A member's reply is complete at its own finish reason: what becomes of the call after that
    changes nothing for it. `settle` gives the other members the call's outcome and end.

    Running usage belongs to a member only where the host was asked for it
    (`usage_per_choice`, vLLM). Cached tokens are never known: vLLM's closing usage has those of
    the prompt that answered first, and of no other.
    """

    members: tuple[Exchange, ...]
    usage_per_choice: bool = False
    sent_at: float | None = None
    end_at: float | None = None
    usage: Usage | None = None
    status: int | None = None
    outcome: Outcome = "cancelled"
    error: str = ""
    resends: int = 0
    retries: int = 0
    served_by: str = ""

    @classmethod
    def of(cls, prompts: int, usage_per_choice: bool) -> Self:
        """An exchange for so many prompts."""
        members = tuple(Exchange() for _ in range(prompts))
        for member in members:
            member.usage_runs_along = usage_per_choice
        return cls(members, usage_per_choice)

    @property
    def complete(self) -> bool:
        """Whether the host finished the reply to every prompt."""
        return all(member.complete for member in self.members)

    @property
    def is_over(self) -> bool:
        """Whether nothing is missing, although `[DONE]` may follow."""
        return self.usage is not None and self.complete

    @property
    def lack(self) -> str:
        """What a reply that has ended lacks to be complete, in words."""
        reasons = [member.finish_reason for member in self.members]
        missing = reasons.count(None)
        if missing:
            return f"the stream ended without a finish reason for {missing} of {len(reasons)}"
        return next(each.lack for each in self.members if not is_good_finish(each.finish_reason))

    def take(self, payload: bytes, received_at: float) -> None:
        """Take in one event of the stream. Raises Malformed."""
        event = interpret_list(payload)
        for index, reply in event.replies:
            if index >= len(self.members):
                raise Malformed(f"a reply to prompt {index} of a list of {len(self.members)}")
            self._absorb(self.members[index], reply, received_at)
        if event.usage is not None:
            self.usage = event.usage
            self.end_at = received_at

    def begin_again(self) -> None:
        """As an Exchange does, with each member."""
        for member in self.members:
            member.begin_again()
        self.retries += 1
        self.status, self.served_by = None, ""
        self.usage = self.end_at = None

    def close(self, received_at: float) -> None:
        """`[DONE]` arrived."""
        self.end_at = received_at

    def end_of_body(self, received_at: float) -> None:
        """The body ended as it should."""

    def succeed(self) -> None:
        """The reply to every prompt is complete."""
        self.outcome = "ok"

    def settle(self) -> None:
        """The call is over: say what became of each member."""
        for member in self.members:
            member.sent_at, member.status = self.sent_at, self.status
            member.resends, member.retries = self.resends, self.retries
            member.served_by = self.served_by
            if member.complete:
                member.succeed()
            else:
                member.outcome, member.error, member.end_at = self.outcome, self.error, self.end_at

    @property
    def last_token_at(self) -> float | None:
        """When the last event with output arrived, of any member."""
        return max((m.token_times[-1] for m in self.members if m.token_times), default=None)

    @property
    def times_of_replies(self) -> "tuple[array[float], ...]":
        """Each member's."""
        return tuple(member.token_times for member in self.members)

    @property
    def call_usage(self) -> Usage | None:
        """Tokens stated for the call alone: None in it for what every member has by itself."""
        if self.usage is None:
            return None
        return Usage(
            None if self._each_has("prompt_tokens") else self.usage.prompt_tokens,
            None,
            None if self._each_has("output_tokens") else self.usage.output_tokens,
        )

    def _each_has(self, name: str) -> bool:
        return all(getattr(member, name) is not None for member in self.members)

    def _absorb(self, member: Exchange, event: Event, received_at: float) -> None:
        if not self.usage_per_choice:
            event = event._replace(usage=None)
        member.absorb(event, received_at)
        if event.finish_reason is not None:
            member.close(received_at)


def interpret_list(payload: bytes) -> ListEvent:
    """The meaning of one event of a list call's reply.

    Raises Malformed as `interpret` does, and for a choice that does not say which prompt it is of.
    """
    event = decode(payload)
    choices, usage = event.get("choices"), usage_of(event)
    if not choices:
        return ListEvent((), usage)
    if not isinstance(choices, list):
        raise Malformed(f"an event has no list of choices: {excerpt(payload)}")
    alone = usage if len(choices) == 1 else None
    return ListEvent(tuple(_reply(choice, alone, payload) for choice in choices))


def _reply(choice: object, usage: Usage | None, payload: bytes) -> tuple[int, Event]:
    index = choice.get("index") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or type(index) is not int or index < 0:
        raise Malformed(f"a choice does not say which prompt it is of: {excerpt(payload)}")
    return index, choice_event(choice, usage)
