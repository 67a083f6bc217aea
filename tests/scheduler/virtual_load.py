"""Seeded workloads for the virtual engine."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ask import Ask

VOCABULARY = range(300, 30_000)


@dataclass(frozen=True, slots=True)
class Mix:
    """Contexts and the requests on them; the defaults are the batch the figures are given for."""

    contexts: int = 6
    per_context: int = 6
    context_tokens: int = 1600
    question_tokens: int = 30
    output_tokens: int = 8
    seed: int = 0


@lru_cache(maxsize=20_000)
def tokens(count: int, *key: object) -> tuple[int, ...]:
    """`count` token ids, the same for the same key."""
    return tuple(random.Random(repr(key)).choices(VOCABULARY, k=count))


def question(mix: Mix, context: int, number: int) -> Ask:
    """Question `number` on a context, arriving at 0."""
    start = tokens(mix.context_tokens, "context", mix.seed, context)
    end = tokens(mix.question_tokens, "question", mix.seed, context, number)
    name = f"c{context}-{number}"
    return Ask(name, f"c{context}", start + end, output_tokens=mix.output_tokens)


def grouped(mix: Mix) -> list[Ask]:
    """One batch, context by context."""
    return [question(mix, c, n) for c in range(mix.contexts) for n in range(mix.per_context)]


def shuffled(mix: Mix) -> list[Ask]:
    """The same batch in an order drawn from the seed."""
    asks = grouped(mix)
    random.Random(f"order-{mix.seed}").shuffle(asks)
    return asks


def unlabelled(asks: Iterable[Ask]) -> list[Ask]:
    """The same requests without labels."""
    return [replace(ask, labelled=False) for ask in asks]


def poisson(mix: Mix, rate: float, count: int, weights: Sequence[float] | None = None) -> list[Ask]:
    """`count` requests, `rate` per second, on contexts drawn at random (with `weights`)."""
    dice = random.Random(f"arrivals-{mix.seed}")
    pool = [tokens(mix.context_tokens, "context", mix.seed, c) for c in range(mix.contexts)]
    now, asks = 0.0, []
    for number in range(count):
        now += dice.expovariate(rate)
        context = dice.choices(range(mix.contexts), weights)[0]
        end = tokens(mix.question_tokens, "question", mix.seed, number)
        name = f"c{context}-{number}"
        ask = Ask(name, f"c{context}", pool[context] + end, now, mix.output_tokens)
        asks.append(ask)
    return asks


def family(
    systems: int,
    documents: int,
    questions: int,
    system_tokens: int,
    document_tokens: int,
    seed: int,
) -> list[Ask]:
    """A two-level hierarchy, shuffled: system prompts, documents below each, questions below."""
    asks = []
    for s in range(systems):
        top = tokens(system_tokens, "system", seed, s)
        for d in range(documents):
            middle = tokens(document_tokens, "document", seed, s, d)
            for q in range(questions):
                end = tokens(30, "leaf", seed, s, d, q)
                asks.append(Ask(f"s{s}-d{d}-{q}", f"s{s}-d{d}", top + middle + end))
    random.Random(f"family-{seed}").shuffle(asks)
    return asks
