"""Batches in a session: what comes of each and of its members, on a client that replies at once."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import uvloop

from loadgen.client.exchange import Exchange, ListExchange
from loadgen.client.protocol import Usage
from loadgen.client.token_times import ReadLog
from loadgen.errors import UsageError
from loadgen.record import NEVER_SENT, BatchRecord, Outcome, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.swarm.options.swarm_options import SwarmOptions, extra_body
from loadgen.swarm.sending.batch_sender import BatchForm
from loadgen.swarm.sending.dispenser import SessionOver
from loadgen.swarm.sending.labels import Labels, check_labels
from loadgen.swarm.sending.session import Hooks, Session
from loadgen.workload.arrivals import ConstantPacer, Rate
from loadgen.workload.batches import Batching
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import WorkloadSettings
from loadgen.workload.workload import Workload

Call = tuple[Any, Mapping[str, Any] | None]


class ScriptedClient:
    """Gives the n-th reply the n-th of `outcomes`, `ok` after the last; None hangs."""

    def __init__(self, outcomes: Sequence[Outcome | None] = ()) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[Call] = []
        self.usage: Usage | None = None
        self.log = ReadLog()

    async def __aenter__(self) -> "ScriptedClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stream(
        self, prompt: Any, max_tokens: int, exchange: Any, extra: Any, session: str
    ) -> None:
        self.calls.append((prompt, extra))
        exchange.sent_at = time.perf_counter()
        if isinstance(exchange, ListExchange):
            exchange.usage = self.usage
        for reply in exchange.members if isinstance(exchange, ListExchange) else [exchange]:
            await self._reply(reply)
        exchange.outcome = self._outcome_of_call(exchange)
        exchange.end_at = time.perf_counter()

    async def _reply(self, reply: Exchange) -> None:
        outcome = self.outcomes.pop(0) if self.outcomes else "ok"
        if outcome is None:
            await asyncio.sleep(3600)
        reply.outcome = outcome or "ok"
        if outcome == "ok":
            reply.token_times.append(time.perf_counter())
            reply.finish_reason = "length"
            reply.close(time.perf_counter())

    def _outcome_of_call(self, exchange: Exchange | ListExchange) -> Outcome:
        if isinstance(exchange, Exchange):
            return exchange.outcome
        return "ok" if exchange.complete else "truncated"


class Swarm:
    """What one session has recorded."""

    def __init__(self, client: ScriptedClient, size: int = 3, limit: int | None = None) -> None:
        self.client = client
        self.rows: list[RequestRecord] = []
        self.batches: list[BatchRecord] = []
        self.spent = 0
        self._batching = Batching(size=size, limit=limit)

    def session(self, share: int | None = None, stickiness: float = 0.0, **more: Any) -> Session:
        settings = WorkloadSettings(contexts=4, stickiness=stickiness)
        return Session(
            workload=Workload(load_corpus(), settings, EstimatedTokens()),
            client=self.client,  # type: ignore[arg-type]
            clock=RunClock(time.time()),
            worker="0",
            hooks=Hooks(
                row=lambda record, gaps_ms: self.rows.append(record),
                sample=lambda sample: None,
                batch=self.batches.append,
                spent=self._count_spent,
            ),
            batching=self._batching,
            share=share,
            **more,
        )

    def _count_spent(self) -> None:
        self.spent += 1


FORMS = {"requests": BatchForm(), "list": BatchForm(as_list=True)}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> BatchForm:
    return FORMS[request.param]


def send_one(swarm: Swarm, **more: Any) -> BatchRecord:
    async def send() -> BatchRecord:
        async with swarm.session(**more).running() as session:
            return await session.send_batch(await session.next_batch(), "user")

    return uvloop.run(send())


def test_a_whole_batch_has_a_makespan(form: BatchForm) -> None:
    swarm = Swarm(ScriptedClient())
    batch = send_one(swarm, batch_form=form)
    assert swarm.batches == [batch]
    assert (batch.batch_id, batch.outcome, batch.requests, batch.ok) == ("0", "ok", 3, 3)
    assert [row.request_id for row in swarm.rows] == ["0", "1", "2"]
    assert {row.batch_id for row in swarm.rows} == {"0"}
    assert batch.contexts == len({row.context_id for row in swarm.rows})
    assert batch.sent_s == min(row.sent_s or 0 for row in swarm.rows) == batch.scheduled_s
    assert batch.first_token_s == min(row.first_token_s or 0 for row in swarm.rows)
    assert batch.first_reply_s == min(row.end_s for row in swarm.rows)
    assert batch.last_reply_s == max(row.end_s for row in swarm.rows)
    assert batch.makespan_s == batch.last_reply_s - batch.scheduled_s


OUTCOMES: dict[str, tuple[list[Outcome | None], str, int]] = {
    "the first fails": (["timeout", "ok", "ok"], "partial", 2),
    "one is left": (["truncated", "truncated", "ok"], "partial", 1),
    "all fail": (["http_error"] * 3, "failed", 0),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_batch_with_a_failure_has_no_makespan(name: str) -> None:
    outcomes, expected, ok = OUTCOMES[name]
    swarm = Swarm(ScriptedClient(outcomes))
    batch = send_one(swarm)
    assert (batch.outcome, batch.ok, batch.makespan_s) == (expected, ok, None)
    ends = [row.end_s for row in swarm.rows if row.outcome == "ok"]
    assert batch.last_reply_s == (max(ends) if ends else None)
    assert sorted(row.outcome for row in swarm.rows) == sorted(outcomes)


async def cancel_in_flight(session: Session) -> None:
    sending = asyncio.create_task(session.send_batch(await session.next_batch(), "user"))
    await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert sending.cancelled()


def test_a_batch_that_is_cut_off_is_partial(form: BatchForm) -> None:
    swarm = Swarm(ScriptedClient(["ok", None, None]))

    async def swarm_is_cut() -> None:
        async with swarm.session(batch_form=form).running() as session:
            await cancel_in_flight(session)

    uvloop.run(swarm_is_cut())
    (batch,) = swarm.batches
    assert (batch.outcome, batch.ok, batch.makespan_s) == ("partial", 1, None)
    assert sorted(row.outcome for row in swarm.rows) == ["cancelled", "cancelled", "ok"]


def test_a_batch_cancelled_before_it_began_is_recorded_too(form: BatchForm) -> None:
    swarm = Swarm(ScriptedClient([None] * 3))

    async def cancelled_at_once() -> None:
        async with swarm.session(batch_form=form).running() as session:
            turn = await session.next_batch()

            async def user() -> None:
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await session.send_batch(turn, "user")

            await asyncio.gather(asyncio.create_task(user()), return_exceptions=True)

    uvloop.run(cancelled_at_once())
    assert [row.outcome for row in swarm.rows] == ["cancelled"] * 3
    assert [batch.ok for batch in swarm.batches] == [0]


def test_batches_due_and_never_sent_are_cancelled() -> None:
    swarm = Swarm(ScriptedClient())

    async def stopped() -> None:
        async with swarm.session(pacer=ConstantPacer(Rate.parse("200"))).running() as session:
            await session.next_batch()
            await asyncio.sleep(0.05)
            session.stop()

    uvloop.run(stopped())
    assert swarm.batches
    assert {batch.outcome for batch in swarm.batches} == {"cancelled"}
    assert {(batch.sent_s, batch.makespan_s) for batch in swarm.batches} == {(None, None)}
    assert len(swarm.rows) == 3 * len(swarm.batches)
    assert {row.error for row in swarm.rows} == {NEVER_SENT}


def test_in_an_open_loop_the_makespan_counts_from_the_due_time() -> None:
    swarm = Swarm(ScriptedClient())

    async def late() -> None:
        async with swarm.session(pacer=ConstantPacer(Rate.parse("1000"))).running() as session:
            turn = await session.next_batch()
            await asyncio.sleep(0.05)
            await session.send_batch(turn, "user")

    uvloop.run(late())
    (batch,) = swarm.batches
    assert batch.makespan_s is not None
    assert batch.sent_s is not None
    assert batch.sent_s - batch.scheduled_s > 0.04
    assert batch.makespan_s > 0.04


def test_a_limited_swarm_says_once_that_it_is_spent() -> None:
    swarm = Swarm(ScriptedClient(), limit=3)

    spent_after: list[int] = []

    async def user() -> None:
        async with swarm.session(share=3).running() as session:
            for _ in range(3):
                await session.send_batch(await session.next_batch(), "user")
                spent_after.append(swarm.spent)
            with pytest.raises(SessionOver):
                await session.next_batch()

    uvloop.run(user())
    assert spent_after == [0, 0, 1]
    assert len(swarm.batches) == 3


def test_a_worker_without_a_share_is_spent_from_the_start() -> None:
    swarm = Swarm(ScriptedClient())

    async def idle() -> None:
        async with swarm.session(share=0).running():
            assert swarm.spent == 1

    uvloop.run(idle())


def test_each_request_carries_its_label() -> None:
    swarm = Swarm(ScriptedClient())
    send_one(swarm, labels=Labels(True, {"vllm_xargs": {"other": 1}}))
    for row, (_, extra) in zip(swarm.rows, swarm.client.calls, strict=True):
        assert row.label == row.context_id
        assert extra == {"vllm_xargs": {"other": 1, "context": row.context_id}}


@pytest.mark.parametrize(("stickiness", "labelled"), [(1.0, True), (0.0, False)])
def test_a_list_is_labelled_when_it_is_about_one_context(stickiness: float, labelled: bool) -> None:
    swarm = Swarm(ScriptedClient(), size=6)
    batch = send_one(
        swarm, labels=Labels(True, {}), batch_form=FORMS["list"], stickiness=stickiness
    )
    assert (batch.contexts == 1) is labelled
    context_id = swarm.rows[0].context_id
    assert {row.label for row in swarm.rows} == {context_id if labelled else ""}
    ((prompts, extra),) = swarm.client.calls
    assert len(prompts) == 6
    assert extra == ({"vllm_xargs": {"context": context_id}} if labelled else None)


def test_tokens_of_a_call_stand_in_its_batch() -> None:
    client = ScriptedClient()
    client.usage = Usage(300, 50, 12)
    batch = send_one(Swarm(client), batch_form=FORMS["list"])
    assert (batch.call_prompt_tokens, batch.call_output_tokens) == (300, 12)


def test_without_labels_nothing_is_added() -> None:
    body: dict[str, Any] = {"seed": 1}
    assert Labels(False, {}).tag("c", body) == (body, "")
    assert Labels(False, {}).tag("c") == (None, "")


def test_a_label_of_the_locustfile_wins() -> None:
    own = {"vllm_xargs": {"context": "mine"}, "seed": 1}
    assert Labels(True, {}).tag("c", own) == (own, "mine")


@pytest.mark.parametrize("body", [{"vllm_xargs": {"context": "x"}}, {"vllm_xargs": 3}])
def test_an_extra_body_that_labels_would_overwrite_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="vllm_xargs"):
        check_labels("oracle", body)
    check_labels("none", body)


def test_a_field_that_the_target_sets_is_not_for_an_extra_body() -> None:
    options = SwarmOptions.read({"extra_body": '{"seed": 1}'})
    assert extra_body(options, {"config": "x"}) == {"config": "x", "seed": 1}
    with pytest.raises(UsageError, match="extra body sets 'seed', which the target sets itself"):
        extra_body(options, {"seed": 2})


def test_single_requests_are_not_taken_from_batches() -> None:
    async def mixed() -> None:
        async with Swarm(ScriptedClient()).session().running() as session:
            await session.next_turn()

    with pytest.raises(RuntimeError, match="next_batch"):
        uvloop.run(mixed())
