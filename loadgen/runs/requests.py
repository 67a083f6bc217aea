"""The requests of a run: what was sent and what counts, by one rule for everybody who reads them.

- A request stands where it was sent, else where it was due; one that was cancelled before it was
  sent was never sent, and stands last.
- After a reset of the statistics those count that ended since.
- Of a run with a warm-up those count that were due after it.
- Rows that are not whole are left out, and one that is there twice counts once.
- A reply without `cached_tokens` took none from a cache where the host told it of any other: some
  leave the field out where it would be 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from loadgen.record import LATENCIES, WAITING, RequestRecord
from loadgen.runs.columns import (
    ALL,
    ID,
    Columns,
    Flags,
    Floats,
    Indices,
    Texts,
    kinds_of,
    read_columns,
)
from loadgen.runs.json_file import FileProblem
from loadgen.stats.metrics import CATALOG, figure_of
from loadgen.stats.steady_state import (
    COLUMNS,
    SteadyState,
    each_of,
    find_steady_state,
    is_meant_steady,
)

NEEDED = (ID, "sent_s", "end_s", "ttft_ms", "e2e_ms", "output_tokens", "outcome")
"""What tells the file from others; columns that came later may be missing."""
RULE = (ID, "scheduled_s", "sent_s", "end_s", "outcome", "late")
"""Columns that say what was sent and counts."""
CONTEXTS = ("context_id", "rag_context_id", "retrieval_ms")
_NUMBERS, _TEXTS = kinds_of(RequestRecord)
_NUMBERS = (ID, *_NUMBERS)


@dataclass(frozen=True, slots=True)
class Requests:
    """`order` are places in the file, in the order of sending; `at_s` is when each was sent or due,
    NaN for those that never were. `end_s` is not NaN for any that was."""

    columns: Columns
    order: Indices
    at_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, columns: Columns, reset_s: float | None = None, warmup_s: float = 0.0) -> Self:
        """Those that count of the rows of a file."""
        at_s, end_s = _at_s(columns), columns.number("end_s")
        order = np.lexsort((_position(columns), at_s))
        at_s, end_s = at_s[order], end_s[order]
        end_s = np.where(np.isnan(end_s), at_s, end_s)
        due_s = columns.number("scheduled_s")[order]
        due_s = np.where(np.isnan(due_s), at_s, due_s)
        counts = ~_is_doubled(_position(columns)[order], at_s, end_s)
        if not counts.all():
            remark = f"requests.csv: {int((~counts).sum()):,} row(s) are there twice and count once"
            doubled = FileProblem(remark, is_of_rows=True)
            columns = replace(columns, problems=(*columns.problems, doubled))
        if reset_s is not None:
            counts &= ~(end_s < reset_s)
        if warmup_s:
            counts &= ~(due_s < warmup_s)
        return cls(columns, order[counts], at_s[counts], end_s[counts])

    def __len__(self) -> int:
        return len(self.at_s)

    def taken(self, which: Flags | Indices) -> Self:
        """Only some of them, or all in another order."""
        return replace(
            self, order=self.order[which], at_s=self.at_s[which], end_s=self.end_s[which]
        )

    @property
    def sent(self) -> Self:
        """Without those that were never sent."""
        never = np.isnan(self.at_s)
        return self.taken(~never) if never.any() else self

    @property
    def ok(self) -> Flags:
        """Which of them ended `ok`."""
        return self.text("outcome").among("ok")

    @property
    def is_cancelled(self) -> Flags:
        """Which had no end of their own."""
        return self.text("outcome").among("cancelled")

    def number(self, name: str) -> Floats:
        """A column of numbers, NaN where a cell is empty or the file has no such column."""
        return self.columns.number(name, self.order)

    @property
    def is_unanswered(self) -> Flags:
        """Which had no end of their own, late ones too."""
        return self.is_cancelled | self.is_late

    @property
    def is_late(self) -> Flags:
        """Which were cut off when they had waited too long."""
        return self.text("late").among("true")

    @property
    def waited_ms(self) -> Floats:
        """How long each had been waited for when it ended, or when the run did where it was never
        sent."""
        end_s = self.number("end_s")
        last_s = float(np.nanmax(end_s)) if len(end_s) else 0.0
        is_open = np.isnan(self.at_s) | np.isnan(end_s)
        return np.asarray((np.where(is_open, last_s, end_s) - self.number("scheduled_s")) * 1000)

    def at_least_ms(self, name: str) -> Floats:
        """A latency; of those that were cut off before it had an end, how long it had run."""
        values = self.number(name)
        if name not in WAITING:
            return values
        is_running = self.is_unanswered & (np.isnan(values) | (name == "e2e_ms"))
        if name == "retrieval_ms":
            # Only a retrieval comes before the sending of what a user has begun.
            is_running &= np.isnan(self.number("sent_s")) & ~self.text("user").among("")
            is_running &= self.text("batch_id").among("")
        return np.where(is_running, self.waited_ms, values)

    def latency(self, name: str) -> Floats:
        """What counts in a metric of values: of `ok` requests the column, of late ones what they
        had at least. NaN for others."""
        is_late = self.is_late & (name in LATENCIES)
        values = np.where(self.ok, self.number(name), np.nan)
        return np.where(is_late, self.at_least_ms(name), values) if is_late.any() else values

    def text(self, name: str) -> Texts:
        """A column of texts, empty where the file has no such column."""
        return self.columns.text(name, self.order)

    def flag(self, name: str) -> Floats:
        """A column of true and false as 1 and 0, NaN where a cell is empty."""
        return self.columns.flag(name, self.order)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How often each outcome occurred."""
        outcome = self.text("outcome")
        counts = np.bincount(outcome.codes, minlength=len(outcome.names))
        return {name: int(n) for name, n in zip(outcome.names, counts, strict=False) if n}

    @property
    def context(self) -> Texts:
        """That of the prompt: after a retrieval the one that was found, empty without any."""
        true, found = self.text("context_id"), self.text("rag_context_id")
        retrieved = ~np.isnan(self.number("retrieval_ms"))
        if not retrieved.any():
            return true
        names = tuple(dict.fromkeys((*true.names, *found.names)))
        place = {name: number for number, name in enumerate(names)}
        codes = (np.asarray([place[name] for name in text.names]) for text in (true, found))
        of_true, of_found = codes
        return Texts(np.where(retrieved, of_found[found.codes], of_true[true.codes]), names)

    def emitted(self) -> Iterator[str]:
        """The contexts that were sent, in the order of sending; a question without any is left
        out."""
        sent = self.taken(~np.isnan(self.number("sent_s")))
        context = sent.context
        return (name for code in context.codes.tolist() if (name := context.names[code]))

    @property
    def cached_tokens(self) -> Floats:
        """Of each `ok` request; NaN in all where the host told none."""
        cached = self.number("cached_tokens")
        told = self.ok & ~np.isnan(cached)
        return np.nan_to_num(cached) if told.any() else np.full(len(self), np.nan)

    @property
    def told_cached_tokens(self) -> Floats:
        """The same, and of other requests what was told; NaN where nothing was."""
        return np.where(self.ok, self.cached_tokens, self.number("cached_tokens"))

    @property
    def cached_share(self) -> Floats:
        """Cached over prompt tokens of each request, 0 to 1; NaN where the host does not tell."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.cached_tokens / self.number("prompt_tokens"))

    def counts(self, name: str) -> Floats:
        """One of `metrics.COUNTS`, of each request; NaN where it adds nothing to the sum."""
        return _COUNTS[name](self)

    def figure(self, name: str, which: Flags | slice = ALL) -> float | None:
        """A rate or a share of the catalogue, of all or of some of them; None where it is not
        known."""
        metric = CATALOG[name]
        sums = {each: self._sum(each, which) for each in (metric.part, metric.whole) if each}
        first_s, last_s = self.span_s
        return figure_of(metric, sums, last_s - first_s)

    def _sum(self, name: str, which: Flags | slice) -> float | None:
        values = self.counts(name)[which]
        return None if np.isnan(values).all() else float(np.nansum(values))

    @property
    def peak_concurrency(self) -> int:
        """The most that were at once between their sending and their end."""
        sent_s = self.number("sent_s")
        is_sent = ~np.isnan(sent_s)
        at_s = np.concatenate((sent_s[is_sent], self.end_s[is_sent]))
        change = np.repeat((1, -1), int(is_sent.sum()))
        # What ends at the moment at which another is sent was not there with it.
        in_order = change[np.lexsort((change, at_s))]
        return int(in_order.cumsum().max()) if len(in_order) else 0

    @property
    def span_s(self) -> tuple[float, float]:
        """From the first send to the last end; (0, 0) without requests."""
        return span_of(self.at_s, self.end_s)

    def steady_state(self, options: Any, batched: bool) -> SteadyState | None:
        """Of a run with these options; None where it was not meant to be steady. Of many requests
        every second, fourth… is looked at."""
        if not is_meant_steady(options if isinstance(options, Mapping) else {}, batched):
            return None
        ok = np.flatnonzero(self.ok)
        each = each_of(len(ok))
        columns = {name: self.number(name)[ok[::each]].tolist() for name in COLUMNS}
        return find_steady_state(columns, each)


def span_of(at_s: Floats, end_s: Floats) -> tuple[float, float]:
    """From the first send to the last end; (0, 0) without requests."""
    known = ~np.isnan(at_s)
    if not known.any():
        return 0.0, 0.0
    return float(at_s[known].min()), float(np.nanmax((at_s, end_s)))


def _of_ok(name: str) -> Callable[[Requests], Floats]:
    return lambda requests: np.where(requests.ok, requests.number(name), np.nan)


def _cached_tokens(requests: Requests) -> Floats:
    counts = requests.ok & ~np.isnan(requests.number("prompt_tokens"))
    return np.where(counts, requests.cached_tokens, np.nan)


def _finished(requests: Requests) -> Floats:
    return np.where(requests.is_cancelled, np.nan, 1.0)


def _flag(name: str) -> Callable[[Requests], Floats]:
    return lambda requests: requests.flag(name)


def _known(name: str) -> Callable[[Requests], Floats]:
    return lambda requests: np.where(np.isnan(requests.flag(name)), np.nan, 1.0)


def _retrieved(requests: Requests) -> Floats:
    return np.where(np.isnan(requests.number("retrieval_ms")), np.nan, 1.0)


_COUNTS: Mapping[str, Callable[[Requests], Floats]] = {
    "ok": lambda requests: requests.ok.astype(np.float64),
    "finished": _finished,
    "failed": lambda requests: _finished(requests) - requests.ok,
    "rejected": lambda requests: _finished(requests) * requests.text("outcome").among("rejected"),
    "prompt_tokens": _of_ok("prompt_tokens"),
    "cached_tokens": _cached_tokens,
    "output_tokens": _of_ok("output_tokens"),
    "total_tokens": lambda requests: (
        _of_ok("prompt_tokens")(requests) + _of_ok("output_tokens")(requests)
    ),
    "judged": _known("slo_met"),
    "good": _flag("slo_met"),
    "known_labels": _known("label_correct"),
    "right_labels": _flag("label_correct"),
    "retrieved": _retrieved,
    "refused": lambda requests: _retrieved(requests) * requests.text("rag_context_id").among(""),
    "retrieval_ms": lambda requests: requests.latency("retrieval_ms"),
    "ttft_ms": lambda requests: requests.latency("ttft_ms"),
}


def read_requests(path: Path, wanted: Sequence[str] | None = None) -> Columns:
    """The rows of a `requests.csv` in the order of the file: the columns wanted and those of the
    rule, all without a wish."""
    names = (*_NUMBERS, *_TEXTS) if wanted is None else (*RULE, *wanted)
    # As text the ids of millions of requests would take more room than all else.
    texts = [name for name in _TEXTS if name in names and (name != ID or wanted is None)]
    return read_columns(path, [name for name in _NUMBERS if name in names], texts, NEEDED)


def _at_s(columns: Columns) -> Floats:
    sent_s = columns.number("sent_s")
    due_s = columns.number("scheduled_s")
    due_s = np.where(np.isnan(due_s), columns.number("end_s"), due_s)
    cancelled = columns.text("outcome").among("cancelled")
    return np.where(np.isnan(sent_s) & ~cancelled, due_s, sent_s)


def _position(columns: Columns) -> Floats:
    """Requests sent at the same moment stand as in the stream, else as in the file."""
    ids = columns.number(ID)
    return np.arange(columns.rows, dtype=np.float64) if np.isnan(ids).any() else ids


def _is_doubled(position: Floats, at_s: Floats, end_s: Floats) -> Flags:
    """Of rows in the order of sending, those that are the one before once more."""
    doubled = np.zeros(len(at_s), dtype=np.bool_)
    doubled[1:] = (np.diff(position) == 0) & (np.diff(at_s) == 0) & (np.diff(end_s) == 0)
    return doubled
