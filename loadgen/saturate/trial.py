"""What one run at one load shows, from the end of its warm-up on."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.compare.csv_table import CsvTable
from loadgen.compare.gate import Limit
from loadgen.compare.requests_csv import HEADER, VALUES
from loadgen.compare.series import Flags, Floats, Ratio, Series, Values
from loadgen.errors import UsageError
from loadgen.saturate.backlog import Backlog, backlog_of
from loadgen.saturate.objective import ERRORS, GOODPUT, Objective
from loadgen.stats.slo import Slo
from loadgen.stats.steady import steady_from

WAITING = ("ttft_ms", "e2e_ms", "retrieval_ms")
"""Columns that count from when a request was due: one that was cut off had waited that long."""
LATEST_SHARE = 0.5
"""Of a run, that may be left out as warm-up."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Columns of `requests.csv` in the order in which requests were due; `age_ms` is how long each
    had been waited for when it ended, or when the run did where it was never sent."""

    table: CsvTable
    order: NDArray[np.intp]
    due_s: Floats
    end_s: Floats
    outcome: NDArray[np.str_]
    is_sent: Flags

    @classmethod
    def read(cls, run: Path) -> "Sent":
        """Raises UsageError."""
        table = CsvTable.read(run / "requests.csv")
        if not table.has((*HEADER, "scheduled_s")):
            raise UsageError(f"{table.path} has not the columns of a requests.csv")
        table = table.whole()
        due_s, end_s, sent_s = (
            table.numbers(name, least=-np.inf) for name in ("scheduled_s", "end_s", "sent_s")
        )
        order = np.argsort(due_s, kind="stable")[: int((~np.isnan(due_s)).sum())]
        outcome = np.asarray(table.text("outcome"), dtype=np.str_)
        return cls(
            table, order, due_s[order], end_s[order], outcome[order], ~np.isnan(sent_s[order])
        )

    @property
    def cut_off(self) -> Flags:
        """Which had no end of their own."""
        return np.asarray(self.outcome == "cancelled")

    @property
    def age_ms(self) -> Floats:
        last_s = float(np.nanmax(self.end_s)) if len(self.end_s) else 0.0
        ended_s = np.where(self.cut_off & ~self.is_sent | np.isnan(self.end_s), last_s, self.end_s)
        return np.asarray((ended_s - self.due_s) * 1000)

    @property
    def done_s(self) -> Floats:
        """When each was done with, infinite for those cut off."""
        return np.where(self.cut_off, np.inf, self.end_s)

    def column(self, name: str) -> Floats:
        """NaN throughout where the file has none of that name."""
        if name not in self.table.header:
            return np.full(len(self.order), np.nan)
        return self.table.numbers(name)[self.order]


@dataclass(frozen=True)
class Trial:
    """A run of `seconds` at `load`; what was due before `warm_up_s` is left out. `settled` is
    False where the latency drifted to the end, None where too few requests could tell."""

    load: float
    seconds: float
    sent: Sent
    warm_up_s: float
    settled: bool | None
    is_open: bool

    @property
    def kept(self) -> Flags:
        """The requests that count."""
        return np.asarray(self.sent.due_s >= self.warm_up_s)

    @cached_property
    def outcomes(self) -> Mapping[str, int]:
        """Of the requests that count: `arrivals`, `ok`, `failed`, and those `unserved` at the end
        of the drain."""
        outcome = self.sent.outcome[self.kept]
        ok, cut = int((outcome == "ok").sum()), int((outcome == "cancelled").sum())
        return {
            "arrivals": len(outcome),
            "ok": ok,
            "failed": len(outcome) - ok - cut,
            "unserved": cut,
        }

    @cached_property
    def backlog(self) -> Backlog | None:
        """None in a closed loop, where nobody sends before the last reply is there."""
        if not self.is_open or self.seconds <= self.warm_up_s:
            return None
        return backlog_of(self.sent.due_s, self.sent.done_s, self.warm_up_s, self.seconds)

    def values(self, column: str) -> Floats:
        """Of the requests that count and had an answer, in ms."""
        ok = (self.sent.outcome == "ok") & self.kept
        values = self.sent.column(column)[ok]
        return np.asarray(values[~np.isnan(values)])

    def series(self, limit: Limit, objective: Objective) -> Series:
        """What a limit is about, in the order of time."""
        if limit.statistic == GOODPUT:
            assert objective.request is not None
            return self._goodput(objective.request)
        if limit.statistic.metric.name == ERRORS:
            return self._errors()
        return self._latency(VALUES[limit.statistic.metric.name], limit.bound)

    def goodput(self, slo: Slo) -> float | None:
        """Share of requests within it, 0 to 1."""
        ratio = self._goodput(slo)
        return float(ratio.part.mean()) if ratio.samples else None

    def _errors(self) -> Ratio:
        finished = self.kept & ~self.sent.cut_off
        failed = (self.sent.outcome[finished] != "ok").astype(np.float64)
        return Ratio(failed, np.ones_like(failed), len(failed), counts=True)

    def _latency(self, column: str, most_ms: float) -> Values:
        """A request that was cut off after more than the limit was beyond it, by at least that."""
        values = self.sent.column(column)
        values = np.where(self.sent.outcome == "ok", values, np.nan)
        if column in WAITING:
            late = self.sent.cut_off & (self.sent.age_ms > most_ms)
            values = np.where(late, self.sent.age_ms, values)
        return Values(values[self.kept & ~np.isnan(values)])

    def _goodput(self, slo: Slo) -> Ratio:
        """As `Slo.is_met` has it. One cut off that could still have been good is left out."""
        good = (self.sent.outcome == "ok") & ~np.isnan(self.sent.column("ttft_ms"))
        known = self.kept & ~self.sent.cut_off
        for name, most_ms in slo.limits:
            good &= np.nan_to_num(self.sent.column(name)) <= most_ms
            if name in WAITING:
                known |= self.kept & self.sent.cut_off & (self.sent.age_ms > most_ms)
        part = good[known].astype(np.float64)
        return Ratio(part, np.ones_like(part), len(part), counts=True)


def read_trial(
    run: Path, load: float, seconds: float, is_open: bool, warm_up_s: float | None = None
) -> Trial:
    """A finished run; its warm-up is found where `warm_up_s` does not say it. Raises UsageError."""
    sent = Sent.read(run)
    if warm_up_s is not None:
        return Trial(load, seconds, sent, warm_up_s, None, is_open)
    found_s, settled = _warm_up(sent)
    return Trial(load, seconds, sent, min(found_s, LATEST_SHARE * seconds), settled, is_open)


def _warm_up(sent: Sent) -> tuple[float, bool | None]:
    """As `steady_from` finds it in TTFT, and no less than half of all requests take: until then
    an engine has fewer at work than it will."""
    ok = (sent.outcome == "ok") & ~np.isnan(sent.column("ttft_ms"))
    if not ok.any():
        return 0.0, None
    steady = steady_from(sent.column("ttft_ms")[ok].tolist())
    fill_s = float(np.nanmedian(sent.column("e2e_ms")[ok])) / 1000
    return max(fill_s, float(sent.due_s[ok][steady.warm_up]) if steady.warm_up else 0.0), (
        steady.settled
    )
