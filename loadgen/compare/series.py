"""What a run recorded of one metric, in the order of time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.runs.columns import Flags, Floats, Indices
from loadgen.runs.requests import Requests
from loadgen.stats.metrics import Metric, compared


@dataclass(frozen=True, slots=True)
class RequestMarks:
    """Which request of the stream each row is of, and the place of its batch, 0 without any."""

    number: Floats
    batch: Indices


@dataclass(frozen=True, slots=True)
class Values:
    """A value per request, in the order of sending; its mean or a percentile is wanted."""

    value: Floats
    marks: RequestMarks | None = None

    @property
    def samples(self) -> int:
        """Usable samples."""
        return len(self.value)

    def taken(self, which: Indices) -> "Values":
        """Only some of them."""
        return Values(self.value[which])


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two sums over the same rows, in the order of time: `sum(part) / sum(whole)` is wanted.

    A rate has what was done and the seconds it took; a share a part and its whole. `counts` says
    that both count alike things, so that the share is a proportion.
    """

    part: Floats
    whole: Floats
    samples: int
    counts: bool = False
    marks: RequestMarks | None = None

    def taken(self, which: Indices) -> "Ratio":
        """Only some of them."""
        return Ratio(self.part[which], self.whole[which], len(which), self.counts)


Series = Values | Ratio

NO_RATIO = Ratio(np.zeros(0), np.zeros(0), 0)


def series_of(requests: Requests) -> dict[str, Series]:
    """Every metric that those requests can tell, which were all sent."""
    return dict(_series(requests))


def _series(requests: Requests) -> Iterator[tuple[str, Series]]:
    seconds = _seconds(requests)
    marks = RequestMarks(requests.number("request_id"), requests.text("batch_id").codes)
    for name, metric in compared().items():
        if metric.form == "rate":
            yield name, _rate(requests.counts(metric.part), seconds, marks)
        elif metric.form == "share":
            yield name, _share(requests, metric, marks)
        elif metric.source == "request":
            values = requests.latency(metric.column)
            known = ~np.isnan(values)
            yield name, Values(values[known], _marked(marks, known))


def _marked(marks: RequestMarks, which: Flags) -> RequestMarks:
    return RequestMarks(marks.number[which], marks.batch[which])


def _seconds(requests: Requests) -> Floats:
    """The time of each request is that until the next is sent, so that all of it adds up to the
    run's, from the first send to the last end."""
    at_s = requests.at_s
    if not len(at_s):
        return at_s
    return np.diff(np.append(at_s, max(at_s[-1], requests.end_s.max())))


def _rate(done: Floats, seconds: Floats, marks: RequestMarks) -> Ratio:
    known = int((~np.isnan(done)).sum())
    rate = Ratio(np.nan_to_num(done), seconds, known, marks=marks)
    return rate if seconds.sum() > 0 else NO_RATIO


def _share(requests: Requests, metric: Metric, marks: RequestMarks) -> Ratio:
    part, whole = requests.counts(metric.part), requests.counts(metric.whole)
    if np.isnan(part).all() or not np.nansum(whole):
        return NO_RATIO
    known = ~np.isnan(whole)
    part, whole = np.nan_to_num(part[known]), whole[known]
    return Ratio(part, whole, len(whole), metric.is_proportion, _marked(marks, known))
