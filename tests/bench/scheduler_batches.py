"""The batches sent to the real engine: requests as token ids, the same for the same seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 128
VOCABULARY = range(300, 3_000)
"""Ids that the small vocabulary of the demo model has."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request: its true context, sent as label only where an arm labels, and its token ids."""

    context: str
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """`per_context` questions on each of `contexts` contexts, all sent at once in shuffled order.

    Lengths are in tokens, as the engine counts them. Before each context stand the same
    `system_tokens`. With `asked` contexts have so many questions each instead. With `by_session` a
    request names no context but a session, which asks each context once.
    """

    contexts: int = 6
    per_context: int = 6
    context_tokens: int = 1600
    question_tokens: int = 30
    output_tokens: int = 8
    seed: int = 0
    system_tokens: int = 0
    asked: tuple[int, ...] = ()
    by_session: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """Questions on each context."""
        return self.asked or (self.per_context,) * self.contexts

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return sum(self.counts)

    @property
    def bound_tokens(self) -> int:
        """The fewest prompt tokens any order can compute; see `bound_tokens`."""
        opening = self.system_tokens + self.context_tokens
        found_again = (len(self.counts) - 1) * (self.system_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
        return bound_tokens(self.counts, opening, self.question_tokens) - found_again

    def questions(self, order: int = 0) -> list[Question]:
        """The requests in the order in which they are sent; `order` draws another one."""
        questions = [
            Question(
                f"session-{number}" if self.by_session else f"context-{context}",
                self._prompt(context, number),
            )
            for context, count in enumerate(self.counts)
            for number in range(count)
        ]
        random.Random(f"order-{self.seed}-{order}").shuffle(questions)
        return questions

    def openings(self) -> list[Question]:
        """Each context once, without a question."""
        return [
            Question(f"context-{context}", self._opening(context))
            for context in range(len(self.counts))
        ]

    def _opening(self, context: int) -> tuple[int, ...]:
        system = draw_ids(self.system_tokens, "system", self.seed)
        return system + draw_ids(self.context_tokens, "context", self.seed, context)

    def _prompt(self, context: int, number: int) -> tuple[int, ...]:
        question = draw_ids(self.question_tokens, "question", self.seed, context, number)
        return self._opening(context) + question


def bound_tokens(counts: Sequence[int], context_tokens: int, question_tokens: int) -> int:
    """Prompt tokens that must be computed for so many requests on each context.

    That is one full prompt per context, and for each further request all but the whole blocks of
    the context. The last token of a prompt is always computed.
    """
    prompt = context_tokens + question_tokens
    shared = min(context_tokens, prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    asked = [count for count in counts if count]
    return len(asked) * prompt + (sum(asked) - len(asked)) * (prompt - shared)


def draw_ids(count: int, *key: object) -> tuple[int, ...]:
    """`count` token ids, the same for the same key."""
    return tuple(random.Random(repr(key)).choices(VOCABULARY, k=count))
