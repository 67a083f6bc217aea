"""What the tab shows of the leader's swarm; kept on the hub, where nothing runs at once."""

import csv
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import gevent

from dashboards.live_tab.sampler import Sampler
from dashboards.live_tab.series import COLUMNS, LiveSeries
from dashboards.live_tab.served import ContextTable, Timeline, served
from loadgen.swarm.sending.ledger import Row

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader
    from loadgen.swarm.leading.swarm_run import SwarmRun

SHOWN_CONTEXTS = 50
TABLE_EVERY_S = 2.0
"""The table is dearer than all else: 10 ms for 50 contexts."""


def _gate(run: "SwarmRun") -> Iterator[tuple[str, str]]:
    """Its limits, and at its end what became of each."""
    if run.gate is None:
        yield "Gate", ", ".join(limit.text for limit in run.preparation.gate)
        return
    for each in run.gate.findings:
        yield f"{'✓' if each.is_met else '✗'} {each.limit.text}", each.found


class LiveView:
    """Series, timeline and table of the current swarm, or of the last one after its end.

    `epoch` names what they are of: it changes when a swarm starts and when statistics are reset.
    """

    def __init__(self, leader: "Leader") -> None:
        self.leader = leader
        self._epochs = count(int(time.time() * 1000))
        self._greenlet: gevent.Greenlet | None = None
        self._clear()

    def watch(self) -> None:
        """Follow the leader's swarms from now on."""
        hooks = self.leader.environment.events
        self.leader.listener = self._hear
        hooks.test_start.add_listener(lambda **_: self._start())
        hooks.test_stop.add_listener(lambda **_: self._stop())
        hooks.reset_stats.add_listener(lambda **_: self._clear())
        hooks.spawning_complete.add_listener(
            lambda **_: self._clear() if self.leader.environment.reset_stats else None
        )

    def answer(self, epoch: int, step_s: int, since: int, mark: int) -> dict[str, Any]:
        """What a page has not seen: it tells of what it has, and from which number on it asks."""
        self._take_in()
        known, sampler = epoch == self.epoch, self.sampler
        ready = None if self._run is None else self._run.preparation
        rows = self.series.since(since if known and step_s == self.series.step_s else 0)
        marks = self.timeline.since(mark if known else 0)
        return {
            "epoch": self.epoch,
            "columns": COLUMNS,
            "step_s": self.series.step_s,
            "first_row": rows.first,
            "rows": rows.rows,
            "first_mark": marks.first,
            "marks": marks.marks,
            "names": {str(number): name for number, name in marks.names.items()},
            "batch_size": ready.options.batching.size if ready and ready.batched else None,
            "contexts": self._recent_table(),
            "engine_note": None if sampler is None else sampler.engine_note,
            "engine_age_s": None if sampler is None else sampler.engine_age_s,
            "about": self._about(),
            "warnings": self._warnings(),
            "slo": str(ready.options.slo) if ready and ready.options.slo else None,
            "max_lag_ms": ready.options.max_lag_ms if ready is not None else None,
        }

    def all_contexts(self) -> ContextTable:
        """The table with every request so far."""
        self._take_in()
        return self.contexts

    def _hear(self, rows: list[Row] | str) -> None:
        """The ledger's rows; they are read once a second."""
        if self.leader.run is not self._run:
            self._clear()
        self._unread.append(rows)

    def _start(self) -> None:
        if self.leader.run is not self._run:
            self._clear()
        self._end_greenlet()
        if self.leader.current is not None and self.sampler is not None:
            self._greenlet = gevent.spawn(self._sample_for_ever)

    def _stop(self) -> None:
        self._end_greenlet()
        self._take_in()

    def _end_greenlet(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _clear(self) -> None:
        self._run = run = self.leader.run
        self.epoch = next(self._epochs)
        self.series, self.timeline, self.contexts = LiveSeries(), Timeline(), ContextTable()
        self.sampler = None if run is None else Sampler(run)
        self._unread: list[list[Row] | str] = []
        self._last_table: list[list[Any]] = []
        self._table_at_s = -math.inf

    def _sample_for_ever(self) -> None:
        while True:
            self._take_in()
            if self.sampler is not None:  # after a reset another one
                self.series.add(self.sampler.take())
            gevent.sleep(1.0)

    def _take_in(self) -> None:
        unread, self._unread = self._unread, []
        for rows in unread:
            with suppress(csv.Error, IndexError, ValueError):  # of a worker, and not readable
                for request in served(rows):
                    self.timeline.add(request)
                    self.contexts.add(request)

    def _recent_table(self) -> list[list[Any]]:
        now_s = time.monotonic()
        if now_s - self._table_at_s > TABLE_EVERY_S:
            self._last_table, self._table_at_s = self._table(), now_s
        return self._last_table

    def _table(self) -> list[list[Any]]:
        """Name, number, requests, failed, TTFT p50 and p95 in ms, cached share; others last."""
        return [
            [
                name,
                None if name is None else self.timeline.number(name),
                figures.requests,
                figures.failed,
                figures.ttft_ms.quantile(0.5),
                figures.ttft_ms.known_quantile(0.95),
                self.contexts.cached_share(figures),
            ]
            for name, figures in self.contexts.rows(SHOWN_CONTEXTS)
        ]

    def _about(self) -> list[tuple[str, str]]:
        """Whom the swarm loads, as names and values."""
        run = self._run
        if run is None:
            return []
        facts, target = run.preparation.facts, run.supervisor.facts
        tokens = run.supervisor.cache_tokens
        size = "size not known" if tokens is None else f"{tokens:,} tokens"
        state = run.preparation.cache_state
        told = {
            "Target": target.get("name"),
            "Host": run.plan.url,
            "Model": run.plan.model,
            "Engine": f"vLLM {facts.version}" if facts.is_vllm else None,
            "KV cache": size if state == "unknown" else f"{size}, {state} at the start",
        }
        return [(name, value) for name, value in (*told.items(), *_gate(run)) if value]

    def _warnings(self) -> list[str]:
        run, said = self._run, list[str]()
        if self.sampler is not None and self.sampler.saturated:
            said.append(f"Client saturated, do not trust these figures: {self.sampler.saturated}")
        if run is not None and run.gate is not None and not run.gate.is_met:
            said.append(f"{run.gate.verdict.capitalize()}.")
        if run is not None and run.host_died:
            said.append("The host is gone: the run has ended.")
        if run is not None and run.workers is not None and run.workers.lost:
            said.append(f"{run.workers.lost} worker(s) lost: a share of the load is not sent.")
        return said
