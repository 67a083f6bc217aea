"""One call with a list of prompts, and what has been seen of the reply to each so far."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from loadgen.client.exchange import FAILED_FINISHES, Exchange
from loadgen.client.failures import Malformed
from loadgen.client.fault_text import excerpt
from loadgen.client.protocol import Event, Usage, choice_event, decode, usage_of
from loadgen.record import Outcome


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

    @classmethod
    def of(cls, prompts: int, usage_per_choice: bool) -> Self:
        """An exchange for so many prompts."""
        return cls(tuple(Exchange() for _ in range(prompts)), usage_per_choice)

    @property
    def complete(self) -> bool:
        """Whether the host finished the reply to every prompt."""
        return all(member.complete for member in self.members)

    @property
    def lack(self) -> str:
        """What a reply that has ended lacks to be complete, in words."""
        reasons = [member.finish_reason for member in self.members]
        missing = reasons.count(None)
        if missing:
            return f"the stream ended without a finish reason for {missing} of {len(reasons)}"
        given_up = next((reason for reason in reasons if reason in FAILED_FINISHES), None)
        return f"the engine gave up: finish reason {given_up!r}"

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

    def close(self, received_at: float) -> None:
        """`[DONE]` arrived."""
        self.end_at = received_at

    def settle(self) -> None:
        """The call is over: say what became of each member."""
        for member in self.members:
            member.sent_at, member.status = self.sent_at, self.status
            member.resends = self.resends
            if member.complete:
                member.outcome = "ok"
            else:
                member.outcome, member.error, member.end_at = self.outcome, self.error, self.end_at

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
    choices, usage = event.get("choices"), event.get("usage")
    if not choices:
        return ListEvent((), usage_of(usage))
    if not isinstance(choices, list):
        raise Malformed(f"an event has no list of choices: {excerpt(payload)}")
    alone = usage if len(choices) == 1 else None
    return ListEvent(tuple(_reply(choice, alone, payload) for choice in choices))


def _reply(choice: object, usage: object, payload: bytes) -> tuple[int, Event]:
    index = choice.get("index") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or type(index) is not int or index < 0:
        raise Malformed(f"a choice does not say which prompt it is of: {excerpt(payload)}")
    return index, choice_event(choice, usage)
