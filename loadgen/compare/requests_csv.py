"""Our `requests.csv`: a row per request, read into series in the order of sending."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.compare.csv_table import CsvTable
from loadgen.compare.series import NO_RATIO, Flags, Floats, Indices, Ratio, Series, Values
from loadgen.stats.metrics import of_requests

HEADER = ("request_id", "sent_s", "end_s", "ttft_ms", "e2e_ms", "output_tokens", "outcome")
"""What tells the file from others; columns that came later may be missing."""
VALUES = of_requests()
"""Metric to column."""


@dataclass(frozen=True, slots=True)
class TimedRequests:
    """The requests in the order of sending, from `since_s` on and without the warm-up, and when
    each was sent. One that failed before it was sent stands where it was due; one cancelled before
    is left out."""

    table: CsvTable
    order: Indices
    at_s: Floats
    end_s: Floats

    @classmethod
    def of(
        cls, table: CsvTable, since_s: float = -np.inf, warmup_s: float = 0.0
    ) -> "TimedRequests":
        """Those that ended after `since_s` and were due after the first `warmup_s` seconds, as a
        run's summary counts them."""
        at_s, end_s = _at_s(table), _moments(table, "end_s")
        end_s = np.where(np.isnan(end_s), at_s, end_s)
        counts = ~np.isnan(at_s) & (end_s >= since_s) & ~_is_early(table, at_s, warmup_s)
        order = np.lexsort((_position(table), at_s))
        kept = order[counts[order]]
        return cls(table, kept, at_s[kept], end_s[kept])

    def column(self, name: str) -> Floats:
        """A column of numbers in this order; all NaN where the file has none of that name."""
        if name not in self.table.header:
            return np.full(len(self.order), np.nan)
        return self.table.numbers(name)[self.order]

    @property
    def outcome(self) -> NDArray[np.str_]:
        return np.asarray(self.table.text("outcome"), dtype=np.str_)[self.order]


def _is_early(table: CsvTable, at_s: Floats, warmup_s: float) -> Flags:
    """Whether each was due in the warm-up; without one, or a column that tells, by its sending."""
    due_s = _moments(table, "scheduled_s") if table.has(("scheduled_s",)) else at_s
    early = np.where(np.isnan(due_s), at_s, due_s) < warmup_s
    return np.asarray(early) if warmup_s else np.zeros(len(at_s), dtype=np.bool_)


def _at_s(table: CsvTable) -> Floats:
    """When each request was sent, else when it was due; NaN where it was cancelled before."""
    sent_s = _moments(table, "sent_s")
    due_s = _moments(table, "scheduled_s" if table.has(("scheduled_s",)) else "end_s")
    cancelled = np.asarray(table.text("outcome"), dtype=np.str_) == "cancelled"
    return np.where(np.isnan(sent_s) & ~cancelled, due_s, sent_s)


def _moments(table: CsvTable, column: str) -> Floats:
    """Seconds since a run's start, which another machine's clock may have before it."""
    return table.numbers(column, least=-np.inf)


def _position(table: CsvTable) -> Floats:
    """Requests sent at the same moment stand as in the stream."""
    ids = table.text("request_id")
    if all(each.isdecimal() for each in ids):
        return np.asarray([float(each) for each in ids])
    return np.arange(len(ids), dtype=np.float64)


def read_requests(table: CsvTable) -> dict[str, Series]:
    """Every metric that the file can tell. Raises UsageError for what is no number."""
    return series_of(TimedRequests.of(table))


def series_of(sent: TimedRequests) -> dict[str, Series]:
    """Every metric that those requests can tell. Raises UsageError for what is no number."""
    return dict(_series(sent))


def _series(sent: TimedRequests) -> Iterator[tuple[str, Series]]:
    outcome = sent.outcome
    ok = outcome == "ok"
    for metric, column in VALUES.items():
        values = sent.column(column)[ok]
        yield metric, Values(values[~np.isnan(values)])
    seconds = _seconds(sent)
    yield "requests_per_s", _rate(ok.astype(np.float64), seconds)
    tokens = np.where(ok, sent.column("output_tokens"), np.nan)
    yield "output_tokens_per_s", _rate(tokens, seconds)
    finished = outcome != "cancelled"
    failed = (finished & ~ok)[finished].astype(np.float64)
    yield "errors", Ratio(failed, np.ones_like(failed), len(failed), counts=True)
    yield "cached_share", _cached_share(sent, ok)
    yield "goodput_share", _goodput_share(sent)


def _goodput_share(sent: TimedRequests) -> Ratio:
    """Over the requests that were held against an objective."""
    if not sent.table.has(("slo_met",)):
        return NO_RATIO
    met = np.asarray(sent.table.text("slo_met"), dtype=np.str_)[sent.order]
    good = (met == "true")[met != ""].astype(np.float64)
    if not len(good):
        return NO_RATIO
    return Ratio(good, np.ones_like(good), len(good), counts=True)


def _seconds(sent: TimedRequests) -> Floats:
    """The time of each request is that until the next is sent, so that all of it adds up to the
    run's, from the first send to the last end."""
    if not len(sent.at_s):
        return sent.at_s
    return np.diff(np.append(sent.at_s, max(sent.at_s[-1], sent.end_s.max())))


def _rate(done: Floats, seconds: Floats) -> Ratio:
    known = int((~np.isnan(done) & (done > 0)).sum())
    return Ratio(np.nan_to_num(done), seconds, known) if seconds.sum() > 0 else NO_RATIO


def _cached_share(sent: TimedRequests, ok: Flags) -> Ratio:
    """Over the prompts of all `ok` requests: some hosts leave the field out where it would be 0."""
    cached, prompt = sent.column("cached_tokens")[ok], sent.column("prompt_tokens")[ok]
    if np.isnan(cached).all() or not np.nansum(prompt):
        return NO_RATIO
    known = ~np.isnan(prompt)
    return Ratio(np.nan_to_num(cached[known]), prompt[known], int(known.sum()))
