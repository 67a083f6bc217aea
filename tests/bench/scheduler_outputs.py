"""How far greedy replies depend on who is in the batch: with the plugin, and without it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_batches import Batch, Question
from scheduler_engine import send
from scheduler_rows import OutputsRow
from scheduler_servers import STOCK, EngineSetup, Server

from loadgen.client.exchange import Exchange

SETUP = EngineSetup(20)
BATCH = Batch(output_tokens=16)
OTHER_ORDER = 1

Replies = Mapping[tuple[int, ...], tuple[int, ...]]
"""Prompts and the tokens that answered them."""


@dataclass(slots=True, eq=False)
class TokensExchange(Exchange):
    """An exchange that keeps the token ids of its reply."""

    token_ids: list[int] = field(default_factory=list)

    def take(self, payload: bytes, received_at: float) -> None:
        """Take in one event of the stream."""
        Exchange.take(self, payload, received_at)
        for choice in json.loads(payload)["choices"]:
            self.token_ids += choice.get("token_ids") or ()


async def outputs_rows(servers: dict[str, Server]) -> list[OutputsRow]:
    """Servings of one batch compared with stock's first one, and with its order made by hand."""
    stock, questions = servers[STOCK], BATCH.questions()
    first = await _at_once(stock, questions)
    by_context = await _at_once(stock, grouped(questions))
    servings = {
        "stock, the same again": await _at_once(stock, questions),
        "stock, shuffled otherwise": await _at_once(stock, BATCH.questions(OTHER_ORDER)),
        "stock, sent context by context": by_context,
        "stock, one request at a time": await _one_by_one(stock, grouped(questions)),
    }
    rows = [compare(name, first, replies) for name, replies in servings.items()]
    for policy in sorted(servers.keys() - {STOCK}):
        replies = await _at_once(servers[policy], questions)
        rows.append(compare(policy, first, replies))
        rows.append(compare(f"{policy} against stock sent context by context", by_context, replies))
    return rows


def grouped(questions: Sequence[Question]) -> list[Question]:
    """Context by context, in the order in which the contexts first come."""
    first = {question.context: place for place, question in reversed([*enumerate(questions)])}
    return sorted(questions, key=lambda question: first[question.context])


def compare(serving: str, reference: Replies, replies: Replies) -> OutputsRow:
    """How many of the same prompts were answered alike."""
    pairs = [(tokens, replies[prompt]) for prompt, tokens in reference.items()]
    return OutputsRow(
        serving=serving,
        replies=len(pairs),
        tokens=BATCH.output_tokens,
        same=sum(ours == theirs for theirs, ours in pairs),
        same_first=sum(ours[:1] == theirs[:1] for theirs, ours in pairs),
    )


async def _at_once(server: Server, questions: Sequence[Question]) -> Replies:
    await server.target.make_cold()
    return dict(await asyncio.gather(*(_reply(server, question) for question in questions)))


async def _one_by_one(server: Server, questions: Sequence[Question]) -> Replies:
    await server.target.make_cold()
    return dict([await _reply(server, question) for question in questions])


async def _reply(server: Server, question: Question) -> tuple[tuple[int, ...], tuple[int, ...]]:
    exchange = TokensExchange()
    await send(server, question, BATCH.output_tokens, True, exchange, return_token_ids=True)
    return question.prompt, tuple(exchange.token_ids)
