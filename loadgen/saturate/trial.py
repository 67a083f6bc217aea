"""What one run at one load shows, from the end of its warm-up on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from loadgen.compare.gate import Limit
from loadgen.compare.series import Ratio, Series, Values
from loadgen.errors import UsageError
from loadgen.record import BETWEEN_TOKENS, CAME_TOO_LATE
from loadgen.runs.columns import Flags, Floats
from loadgen.runs.recorded import REQUESTS_CSV, RecordedRun
from loadgen.runs.requests import Requests
from loadgen.saturate.objective import ERRORS, GOODPUT, Objective
from loadgen.stats.slo import Slo
from loadgen.stats.steady_state import steady_from

SLICES, MOMENTS = 10, 20
"""Of the time looked at, and in each slice."""
RISING = 0.8
LEAST_SHARE = 0.05
LEAST_DEVIATIONS = 2.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """`growth` is by how many requests the backlog rose from `since_s` to `until_s`, along a
    straight line through it; `rise` the rank correlation with time, from -1 to 1; `arrivals` how
    many came."""

    growth: float
    rise: float
    arrivals: int

    @property
    def is_growing(self) -> bool:
        """Whether the queue grew all the time, by more than a twentieth of what came and by more
        than chance puts between two counts of that size (two deviations of Poisson's)."""
        least = max(LEAST_SHARE * self.arrivals, LEAST_DEVIATIONS * math.sqrt(self.arrivals))
        return self.rise >= RISING and self.growth > least


def backlog_of(due_s: Floats, done_s: Floats, since_s: float, until_s: float) -> Backlog:
    """From the times at which requests were due and done (infinite: never)."""
    edges = np.linspace(since_s, until_s, SLICES * MOMENTS, endpoint=False)
    open_now = np.searchsorted(np.sort(due_s), edges, side="right") - np.searchsorted(
        np.sort(done_s), edges, side="right"
    )
    means = open_now.reshape(SLICES, MOMENTS).mean(axis=1)
    arrivals = int(((due_s >= since_s) & (due_s <= until_s)).sum())
    if np.ptp(means) == 0:
        return Backlog(0.0, 0.0, arrivals)
    slope = float(np.polyfit(np.arange(SLICES), means, 1)[0])
    return Backlog(slope * SLICES, float(spearmanr(np.arange(SLICES), means)[0]), arrivals)


LATEST_SHARE = 0.5
"""Of a run, that may be left out as warm-up."""


@dataclass(frozen=True)
class Trial:
    """A run of `seconds` at `load`, its requests in the order in which they were due; what was due
    before `warm_up_s` is left out. `settled` is False where the latency drifted to the end, None
    where too few requests could tell."""

    load: float
    seconds: float
    requests: Requests
    warm_up_s: float
    settled: bool | None
    is_open: bool

    @cached_property
    def due_s(self) -> Floats:
        """When each was due."""
        return self.requests.number("scheduled_s")

    @property
    def kept(self) -> Flags:
        """The requests that count."""
        return np.asarray(self.due_s >= self.warm_up_s)

    @cached_property
    def outcomes(self) -> Mapping[str, int]:
        """Of the requests that count: `arrivals`, `ok`, `failed`, and those `unserved` at the end
        of the drain."""
        kept = self.kept
        arrivals, ok, cut = (
            int((kept & which).sum())
            for which in (kept, self.requests.ok, self.requests.is_unanswered)
        )
        return {"arrivals": arrivals, "ok": ok, "failed": arrivals - ok - cut, "unserved": cut}

    @cached_property
    def backlog(self) -> Backlog | None:
        """None in a closed loop, where nobody sends before the last reply is there."""
        if not self.is_open or self.seconds <= self.warm_up_s:
            return None
        done_s = np.where(self.requests.is_unanswered, np.inf, self.requests.number("end_s"))
        return backlog_of(self.due_s, done_s, self.warm_up_s, self.seconds)

    def values(self, column: str) -> Floats:
        """Of the requests that count and had an answer, in ms."""
        values = self.requests.number(column)[self.requests.ok & self.kept]
        return np.asarray(values[~np.isnan(values)])

    def series(self, limit: Limit, objective: Objective) -> Series:
        """What a limit is about, in the order of time."""
        if limit.statistic == GOODPUT:
            assert objective.request is not None
            return self._goodput(objective.request)
        if limit.statistic.metric.name == ERRORS:
            return self._errors()
        return self.latency(limit.statistic.metric.column, limit.bound)

    def goodput(self, slo: Slo) -> float | None:
        """Share of requests within it, 0 to 1."""
        ratio = self._goodput(slo)
        return float(ratio.part.mean()) if ratio.samples else None

    def _errors(self) -> Ratio:
        failed = self.requests.counts("failed")[self.kept]
        failed = failed[~np.isnan(failed)]
        return Ratio(failed, np.ones_like(failed), len(failed), counts=True)

    def latency(self, column: str, most_ms: float) -> Values:
        """A request that was cut off after more than the limit was beyond it, by at least that."""
        values = np.where(self.requests.ok, self.requests.number(column), np.nan)
        values = np.where(self._late(column, most_ms), self.requests.at_least_ms(column), values)
        return Values(values[self.kept & ~np.isnan(values)])

    def _late(self, column: str, most_ms: float) -> Flags:
        """Which had no answer in time, and are beyond the limit by what is known of them."""
        at_least_ms = np.nan_to_num(self.requests.at_least_ms(column))
        return np.asarray(self.requests.is_unanswered & (at_least_ms > most_ms))

    def _goodput(self, slo: Slo) -> Ratio:
        """As `Slo.is_met` has it. One cut off that could still have been good is left out."""
        requests, cut_off = self.requests, self.requests.is_cancelled
        good = requests.ok & ~np.isnan(requests.number("ttft_ms"))
        known = self.kept & ~cut_off
        for name, most_ms in slo.limits:
            value = requests.number(name)
            kept = value <= most_ms
            if name in BETWEEN_TOKENS:
                is_alone = np.isnan(requests.number("itl_mean_ms"))
                kept |= np.isnan(value) & (requests.number("output_tokens") < 2) & is_alone
            elif name == "retrieval_ms":
                kept |= np.isnan(value)
            good &= kept
            known |= self.kept & self._late(name, most_ms)
        part = good[known].astype(np.float64)
        return Ratio(part, np.ones_like(part), len(part), counts=True)


def read_trial(
    run: Path, load: float, seconds: float, is_open: bool, warm_up_s: float | None = None
) -> Trial:
    """A finished run, without what this client came too late to send; its warm-up is found where
    `warm_up_s` does not say it. Raises UsageError."""
    rows = RecordedRun(run, is_strict=True).rows
    if not rows.has(("scheduled_s",)):
        raise UsageError(f"{run / REQUESTS_CSV} has not the columns of a {REQUESTS_CSV}")
    requests = Requests.of(rows)
    requests = requests.taken(~requests.text("error").among(CAME_TOO_LATE))
    due_s = requests.number("scheduled_s")
    known = int((~np.isnan(due_s)).sum())
    requests = requests.taken(np.argsort(due_s, kind="stable")[:known])
    if warm_up_s is not None:
        return Trial(load, seconds, requests, warm_up_s, None, is_open)
    found_s, settled = _warm_up(requests)
    return Trial(load, seconds, requests, min(found_s, LATEST_SHARE * seconds), settled, is_open)


def _warm_up(requests: Requests) -> tuple[float, bool | None]:
    """As `steady_from` finds it in TTFT, and no less than half of all requests take: until then
    an engine has fewer at work than it will."""
    ok = requests.ok & ~np.isnan(requests.number("ttft_ms"))
    if not ok.any():
        return 0.0, None
    steady = steady_from(requests.number("ttft_ms")[ok].tolist())
    fill_s = float(np.nanmedian(requests.number("e2e_ms")[ok])) / 1000
    due_s = requests.number("scheduled_s")[ok]
    return max(fill_s, float(due_s[steady.warm_up]) if steady.warm_up else 0.0), steady.settled
