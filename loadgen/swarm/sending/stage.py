"""A load-generating process in one swarm, seen from the hub: single process or worker."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import gevent
from locust import constant
from locust.exception import StopTest, StopUser
from locust.runners import STATE_CLEANUP

from loadgen.client.client import StreamingClient
from loadgen.client.probe import HostFacts
from loadgen.client.retrieval import LABEL_ROUTE, ROUTE, RetrievalClient
from loadgen.client.settings import ClientSettings
from loadgen.client.transport import KEEPALIVE_S
from loadgen.errors import UsageError
from loadgen.record import BatchRecord, RequestRecord
from loadgen.stats.clock import RunClock
from loadgen.stats.self_watch import ClientSample
from loadgen.stats.silence import HostContact
from loadgen.stats.slo import CutOffRule
from loadgen.swarm.engine import BLOCKS, Engine, brisk_switching
from loadgen.swarm.options.flags import SERVICE_LABELS
from loadgen.swarm.options.replay import pacer_of, trace_workload
from loadgen.swarm.options.swarm_options import SwarmOptions, extra_body, request_headers
from loadgen.swarm.process import calm_collector
from loadgen.swarm.sending.batch_sender import BatchForm
from loadgen.swarm.sending.labels import Labels
from loadgen.swarm.sending.ledger import Ledger
from loadgen.swarm.sending.lengths import LengthSource
from loadgen.swarm.sending.plan import Plan
from loadgen.swarm.sending.retriever import Labeller, Retriever
from loadgen.swarm.sending.session import NOT_OF_THE_HOST, Hooks, Session
from loadgen.swarm.showing.request_events import RequestEvents
from loadgen.swarm.showing.stats_rows import log_batches, log_records
from loadgen.swarm.user import CANCEL_GRACE_S
from loadgen.workload.corpus import load_corpus
from loadgen.workload.trace.workload import TraceWorkload
from loadgen.workload.workload import Workload

WARM_BUDGET_S = 0.1
"""Contexts made before the first request cost nothing while requests are timed."""
LOOK_S = 1.0
"""How often the hub asks whether the loop still answers."""
ENDPOINT_NAMES = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

T = TypeVar("T")
logger = logging.getLogger(__name__)

SENDS = "sends_batches"
"""What user classes of ours have."""
LEAST_STOP_S = 0.001
"""0 would tell Locust to kill its users at once."""


class Stage:
    """Owns the session of this process and hands its results to Locust and a ledger."""

    def __init__(self, environment: Any) -> None:
        self.session: Session | None = None
        self._environment = environment
        self._finished: deque[tuple[RequestRecord, list[float]]] = deque()
        self._batches: deque[BatchRecord] = deque()
        self._lifetime: contextlib.AsyncExitStack | None = None
        self._ledger: Ledger | None = None
        self._names: Iterator[str] = map(str, itertools.count())
        self._events = RequestEvents(environment, "")
        self._drain_s = 0.0
        self._cut_offs = CutOffRule()
        self._looking: gevent.Greenlet | None = None
        self._solos: list[Any] = []
        """They play for all users of an open loop without a cap, one for each class of ours."""

    def open(
        self, plan: Plan, ledger: Ledger, client_id: str, on_spent: Callable[[], None]
    ) -> None:
        """Build this process's share of the workload and start pacing it.

        `on_spent` is called on the hub when this process has sent its share of `--batches`.
        """
        options = SwarmOptions.read(plan.options)
        index = plan.workers[client_id]
        self._ledger, self._drain_s = ledger, options.drain_s
        self._cut_offs = CutOffRule.of(options.drain_s, options.max_silence_s, options.slo)
        self._events = RequestEvents(self._environment, ENDPOINT_NAMES[options.endpoint])
        worker = f"{index}." if len(plan.workers) > 1 else ""
        self._names = (f"{worker}{number}" for number in itertools.count())
        workload = _workload(plan, options, index)
        workload.warm(WARM_BUDGET_S)
        self.session = Session(
            workload=workload,
            client=StreamingClient(client_settings(options, plan, plan.body)),
            clock=RunClock(plan.start_unix_s),
            worker=str(index),
            hooks=self._hooks(on_spent),
            pacer=pacer_of(options),
            solo=self._make_solo(plan) if plan.uncapped else None,
            labels=_labels(plan, options),
            retriever=_retriever(options, workload),
            batching=options.batching if plan.batched else None,
            batch_form=BatchForm(options.batch_as == "list", usage_per_choice=plan.is_vllm),
            share=_share(plan, options, index),
            connections=_first_users(plan),
            max_lag_ms=options.max_lag_ms,
        )
        self._lifetime = contextlib.AsyncExitStack()
        self._lifetime.enter_context(calm_collector())
        self._lifetime.enter_context(brisk_switching())
        Engine.of_process().run(self._lifetime.enter_async_context(self.session.running()))
        self._looking = gevent.spawn(_look_at_loop)

    def next_name(self, user_class: type) -> str:
        """A name for a user, unique in this swarm: of several workers it tells its own, too."""
        return f"{user_class.__name__}-{next(self._names)}"

    def stop_sending(self) -> None:
        """Send nothing new; requests in flight go on."""
        if self.session is not None:
            Engine.of_process().call(self.session.stop)

    def drain(self) -> None:
        """Wait for requests in flight, as long as Locust would wait for its users."""
        if self.session is not None:
            drain(self._environment, self.session)

    def close(self) -> None:
        """Close the client and pass on the last records. Where a task blocks the loop this fails
        the run, and requests in flight are not recorded."""
        if self._lifetime is None:
            return
        if self._looking is not None:
            self._looking.kill()
        engine = Engine.of_process()
        self._end_solos()
        if (held := engine.end(self._lifetime.aclose())) is not None:
            self._report_fault(held)
        engine.drain()
        self._lifetime, self.session = None, None
        self._hand_over()
        if self._ledger is not None:
            self._ledger.flush()

    def _make_solo(self, plan: Plan) -> Any:
        classes = [each for each in self._environment.user_classes if hasattr(each, SENDS)]
        named = [each for each in classes if each.__name__ in plan.user_classes]
        weights = [plan.user_classes[each.__name__] for each in named]
        users = self._solos = [each(self._environment) for each in named]
        if not users:
            raise UsageError("no user takes requests of the workload: give -u 1 or more")
        for user in users:
            user.wait_time = constant(0).__get__(user)  # arrivals say when, and one user plays all
            user._run_plain(user.on_start)
            Engine.of_process().run(user._run_async(user.on_start))

        async def solo() -> None:
            (user,) = random.choices(users, weights)
            try:
                await user.one_task()
            except StopUser:
                pass
            except StopTest as stop:
                Engine.of_process().post(partial(user._end_test, stop))

        return solo

    def _end_solos(self) -> None:
        for user in self._solos:
            last = asyncio.wait_for(user._run_async(user.on_stop), CANCEL_GRACE_S)
            try:
                Engine.of_process().run(last)
                user._run_plain(user.on_stop)
            except Exception as error:
                user._report(error)
        self._solos = []

    def _hooks(self, on_spent: Callable[[], None]) -> Hooks:
        def spent() -> None:
            # After the last records, which take the same way.
            Engine.of_process().post(on_spent)

        def failed(error: Exception) -> None:
            Engine.of_process().post(partial(self._report_fault, error))
            spent()

        return Hooks(
            row=self._on_row,
            sample=self._on_sample,
            contact=self._on_contact,
            batch=self._on_batch,
            spent=spent,
            failed=failed,
        )

    def _report_fault(self, error: Exception) -> None:
        """As an exception of a user: the run has failed, and Locust shows why."""
        self._environment.events.user_error.fire(
            user_instance=None, exception=error, tb=error.__traceback__
        )

    def _on_row(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        rule = self._cut_offs
        if record.outcome == "cancelled" and record.error not in NOT_OF_THE_HOST:
            rule.judge(record, gaps_ms)
        else:
            rule.judge_ended(record, gaps_ms)
        self._finished.append((record, gaps_ms))
        if len(self._finished) == 1:
            Engine.of_process().post(self._hand_over)

    def _on_batch(self, record: BatchRecord) -> None:
        self._batches.append(record)
        if len(self._batches) == 1:
            Engine.of_process().post(self._hand_over)

    def _on_sample(self, sample: ClientSample) -> None:
        ledger = self._ledger
        if ledger is not None:
            Engine.of_process().post(partial(ledger.add_sample, sample))

    def _on_contact(self, contact: HostContact) -> None:
        ledger = self._ledger
        if ledger is not None:
            Engine.of_process().post(partial(ledger.add_contact, contact))

    def _hand_over(self) -> None:
        rows, batches = _emptied(self._finished), _emptied(self._batches)
        if self._ledger is None:
            return
        if rows:
            self._ledger.add(rows)
            log_records(self._environment.stats, rows)
            self._events.tell([record for record, _ in rows])
        if batches:
            self._ledger.add_batches(batches)
            log_batches(self._environment.stats, batches)


def _look_at_loop() -> None:
    """Say where a task blocks the loop, once for each time."""
    engine = Engine.of_process()
    while True:
        gevent.sleep(LOOK_S)
        if (place := engine.held_at()) is not None:
            logger.warning("%s %s", place, BLOCKS)
            while engine.held_at() is not None:
                pass


def _emptied(queue: deque[T]) -> list[T]:
    taken = []
    while queue:
        taken.append(queue.popleft())
    return taken


def _first_users(plan: Plan) -> int:
    """Users of this process that begin before an idle connection would be closed again."""
    users, per_s = plan.options.get("num_users") or 0, plan.options.get("spawn_rate") or 0
    return math.ceil(min(users, per_s * KEEPALIVE_S) / len(plan.workers))


def _labels(plan: Plan, options: SwarmOptions) -> Labels:
    is_told = plan.is_vllm and options.labels != "none"
    body = {"model": plan.model, **extra_body(options, plan.body)}
    return Labels(is_told, body, options.session_by)


def _share(plan: Plan, options: SwarmOptions, index: int) -> int | None:
    if plan.trace:
        return plan.trace["shares"][index]
    return options.batching.share(index, len(plan.workers)) if plan.batched else None


def client_settings(
    options: SwarmOptions, host: Plan | HostFacts, body: Mapping[str, Any]
) -> ClientSettings:
    """How a swarm's requests are made; `body` are the fields that the target asks of them."""
    return ClientSettings(
        url=host.url,
        model=host.model,
        endpoint="chat" if options.endpoint == "chat" else "completions",
        temperature=options.temperature,
        ignore_eos=host.is_vllm,
        continuous_usage=host.is_vllm,
        extra_body=extra_body(options, body),
        headers=request_headers(options),
        timeout_s=options.timeout_s,
        connect_timeout_s=options.connect_timeout_s,
        retries=options.retry,
        session_header=options.session_header,
    )


def _workload(plan: Plan, options: SwarmOptions, index: int) -> Workload | TraceWorkload:
    corpus = load_corpus(options.corpus, options.questions)
    tokens = LengthSource(**plan.lengths).tokens()
    if plan.trace:
        common = frozenset(plan.trace["common"])
        return trace_workload(options, corpus, tokens, common, index, len(plan.workers))
    return Workload(
        corpus,
        options.workload,
        tokens,
        worker_index=index,
        workers=len(plan.workers),
        wrong_labels=options.labels == "shuffled",
    )


def _retriever(options: SwarmOptions, workload: Workload | TraceWorkload) -> Retriever | None:
    if options.labels not in SERVICE_LABELS or options.rag_url is None:
        return None
    if isinstance(workload, TraceWorkload):
        return None
    kind, route = (Labeller, LABEL_ROUTE) if options.labels == "kv" else (Retriever, ROUTE)
    client = RetrievalClient(options.rag_url, options.timeout_s, options.connect_timeout_s, route)
    return kind(client, workload, options.rag_wrong)


def drain(environment: Any, session: Session) -> None:
    """Wait for requests in flight; what is left of the stop timeout is Locust's to wait."""
    if _has_strangers(environment):
        return
    _begin_cleanup(environment.runner)
    timeout_s = environment.stop_timeout or 0.0
    end_s = time.monotonic() + timeout_s
    Engine.of_process().end(session.drain(timeout_s))
    if timeout_s:
        environment.stop_timeout = max(LEAST_STOP_S, end_s - time.monotonic())


def _has_strangers(environment: Any) -> bool:
    """Whether there are users who send nothing of ours, and would go on meanwhile."""
    users = environment.runner.user_classes_count
    return any(
        users.get(each.__name__) and not hasattr(each, SENDS) for each in environment.user_classes
    )


def _begin_cleanup(runner: Any) -> None:
    """As Locust does when its listeners have been told: no new users, and who asks for the end
    a second time is not heard."""
    if runner.spawning_greenlet and not runner.spawning_greenlet.ready():
        runner.spawning_greenlet.kill(block=True)
    runner.update_state(STATE_CLEANUP)
