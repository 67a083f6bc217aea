"""What a run's requests add up to: one mergeable value, live, across workers and at the end."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Self

from loadgen.record import BATCH_OUTCOMES, LATENCIES, OUTCOMES, BatchRecord, RequestRecord
from loadgen.stats import metrics
from loadgen.stats.sketch import Sketch

_SUMMARIZED = metrics.summarized()
_READERS, _BATCH_READERS = (
    tuple((each.name, attrgetter(each.column)) for each in _SUMMARIZED if each.source == source)
    for source in ("request", "batch")
)

_OF_LATE = tuple(
    each.name for each in _SUMMARIZED if each.source == "request" and each.column in LATENCIES
)


class Tally:
    """Outcomes and labels of all requests and batches; times and tokens of those that ended `ok`.

    In a latency, one that is late counts with what it had at least.

    Tokens that a host counts for a list call as a whole are in the totals and in no metric, as
    nobody knows how they spread over its requests.
    `cancelled` is counted and is neither success nor failure. `first_sent_s` and `last_end_s`
    are seconds since the run's start, None before any. Not thread-safe.
    """

    __slots__ = (
        "_batches",
        "_call_tokens",
        "_labels",
        "_outcomes",
        "first_sent_s",
        "last_end_s",
        "sketches",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.sketches: dict[str, Sketch] = {each.name: Sketch() for each in _SUMMARIZED}
        self._outcomes: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        self._call_tokens: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self.first_sent_s: float | None = None
        self.last_end_s: float | None = None

    def add(self, record: RequestRecord, gaps_ms: Sequence[float] = ()) -> None:
        """Count one request and the gaps between its tokens in milliseconds."""
        self.add_many([(record, gaps_ms)])

    def add_many(self, rows: Sequence[tuple[RequestRecord, Sequence[float]]]) -> None:
        """Count requests, each with the gaps between its tokens: many at once cost less."""
        for record, _ in rows:
            self._outcomes[record.outcome] += 1
            self._span(record.sent_s, record.end_s)
            if record.label_correct is not None or record.retrieval_ms is not None:
                self._add_label(record)
            if record.resends:
                self._labels["resends"] += record.resends
            if record.retries:
                self._labels["retries"] += record.retries
            if record.slo_met is not None:
                self._labels["judged"] += 1
                self._labels["good"] += record.slo_met
        ok = [row for row in rows if row[0].outcome == "ok"]
        late = [row for row in rows if row[0].late]
        self._labels["late"] += len(late)
        for name in _OF_LATE if late else ():
            waited = (record.latency_ms(name) for record, _ in late)
            self.sketches[name].add_many([each for each in waited if each is not None])
        self._labels["odd_counts"] += sum(1 for record, _ in ok if record.error)
        # Cached ones of a prompt that was not counted would be a part of others.
        counted = [row for row in ok if row[0].prompt_tokens is not None]
        for name, value in _READERS:
            values = [value(each) for each, _ in (counted if name == "cached_tokens" else ok)]
            self.sketches[name].add_many([each for each in values if each is not None])
        gaps_ms = chain.from_iterable(gaps for _, gaps in (*ok, *late))
        self.sketches["itl_ms"].add_many(list(gaps_ms))

    def _add_label(self, record: RequestRecord) -> None:
        if record.label_correct is not None:
            self._labels["known"] += 1
            self._labels["correct"] += record.label_correct
        if record.retrieval_ms is not None:
            self._labels["retrieved"] += 1
            self._labels["refused"] += not record.rag_context_id

    def add_batch(self, batch: BatchRecord) -> None:
        """Count one batch; its members are counted by `add`."""
        self._batches[batch.outcome] += 1
        for name, value in _BATCH_READERS:
            if (found := value(batch)) is not None:
                self.sketches[name].add(found)
        if batch.outcome == "ok":
            self._call_tokens["prompt_tokens"] += batch.call_prompt_tokens or 0
            self._call_tokens["output_tokens"] += batch.call_output_tokens or 0

    def merge(self, other: "Tally") -> None:
        """Add all that `other` holds, which stays as it is."""
        for name, sketch in other.sketches.items():
            self.sketches[name].merge(sketch)
        self._outcomes.update(other._outcomes)
        self._batches.update(other._batches)
        self._call_tokens.update(other._call_tokens)
        self._labels.update(other._labels)
        self._span(other.first_sent_s, other.last_end_s)

    def take(self) -> "Tally":
        """Hand over the content and begin anew: the delta since the last call."""
        taken = Tally()
        taken.sketches, self.sketches = self.sketches, taken.sketches
        taken._outcomes, self._outcomes = self._outcomes, taken._outcomes
        taken._batches, self._batches = self._batches, taken._batches
        taken._call_tokens, self._call_tokens = self._call_tokens, taken._call_tokens
        taken._labels, self._labels = self._labels, taken._labels
        taken._span(self.first_sent_s, self.last_end_s)
        self.first_sent_s = self.last_end_s = None
        return taken

    def _span(self, sent_s: float | None, end_s: float | None) -> None:
        if sent_s is not None and (self.first_sent_s is None or sent_s < self.first_sent_s):
            self.first_sent_s = sent_s
        if end_s is not None and (self.last_end_s is None or end_s > self.last_end_s):
            self.last_end_s = end_s

    @property
    def outcomes(self) -> dict[str, int]:
        """How often each outcome occurred; `ok` is always present."""
        counts = self._outcomes
        return {name: counts[name] for name in OUTCOMES if counts[name] or name == "ok"}

    @property
    def batch_outcomes(self) -> dict[str, int]:
        """How often each outcome of batches occurred; empty where none were sent."""
        return {name: self._batches[name] for name in BATCH_OUTCOMES if self._batches[name]}

    @property
    def ok(self) -> int:
        """Requests that succeeded."""
        return self._outcomes["ok"]

    @property
    def requests(self) -> int:
        """All requests, cancelled ones too: the rows of `requests.csv`."""
        return self._outcomes.total()

    @property
    def finished(self) -> int:
        """Requests that ended by themselves, well or badly: what a failure rate divides by."""
        return self.requests - self._outcomes["cancelled"]

    @property
    def failed(self) -> int:
        """Requests that ended badly."""
        return self.finished - self.ok

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the `ok` requests and list calls whose host counted them."""
        return round(self.sketches["prompt_tokens"].sum) + self._call_tokens["prompt_tokens"]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the host said it took from a cache."""
        return round(self.sketches["cached_tokens"].sum)

    @property
    def output_tokens(self) -> int:
        """Tokens of the `ok` replies."""
        return round(self.sketches["output_tokens"].sum) + self._call_tokens["output_tokens"]

    @property
    def counts(self) -> dict[str, float | None]:
        """The sums of `metrics.COUNTS`, None for those that nothing told."""
        counted, labels, told = self.sketches, self._labels, bool(self.output_tokens)
        return {
            "ok": self.ok,
            "finished": self.finished,
            "failed": self.failed,
            "rejected": self._outcomes["rejected"],
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens if counted["cached_tokens"].count else None,
            "output_tokens": self.output_tokens if counted["output_tokens"].count or told else None,
            "total_tokens": self.prompt_tokens + self.output_tokens
            if counted["prompt_tokens"].count or told
            else None,
            "judged": self.judged,
            "good": self.good,
            "known_labels": labels["known"],
            "right_labels": labels["correct"],
            "retrieved": labels["retrieved"],
            "refused": labels["refused"],
            "retrieval_ms": counted["retrieval_ms"].sum if counted["retrieval_ms"].count else None,
            "ttft_ms": counted["ttft_ms"].sum,
        }

    def figure(self, name: str, duration_s: float = 0.0) -> float | None:
        """A rate over so many seconds, or a share, of the catalogue; None where it is not known."""
        return metrics.figure_of(metrics.CATALOG[name], self.counts, duration_s)

    @property
    def labels(self) -> dict[str, int]:
        """How many labels were `known` and of them `correct`, how many questions were `retrieved`
        and of them `refused`."""
        return {name: self._labels[name] for name in ("known", "correct", "retrieved", "refused")}

    @property
    def resends(self) -> int:
        """How often a request was sent again, as the host had closed its kept connection."""
        return self._labels["resends"]

    @property
    def retries(self) -> int:
        """How often a request was tried again after a rejection."""
        return self._labels["retries"]

    @property
    def odd_counts(self) -> int:
        """Replies that are `ok`, but had a count that cannot be, which is left out."""
        return self._labels["odd_counts"]

    @property
    def late(self) -> int:
        """Requests that were cut off when they had waited too long."""
        return self._labels["late"]

    def untold(self, metric: str) -> int:
        """Replies that are `ok` and whose latency is not known: without output they have no TTFT,
        and without counts no TPOT."""
        counted = {"ttft_ms": "ttft_ms", "tpot_ms": "output_tokens"}.get(metric)
        if counted is None:
            return 0
        ended = self.ok + self.late if metric == counted else self.ok
        return max(ended - self.sketches[counted].count, 0)

    @property
    def judged(self) -> int:
        """Finished requests that were held against an objective."""
        return self._labels["judged"]

    @property
    def good(self) -> int | None:
        """Requests within their objective, None where there was none."""
        return self._labels["good"] if self._labels["judged"] else None

    def to_wire(self) -> dict[str, Any]:
        """The content as plain numbers, lists and string keys, for msgpack or JSON."""
        return {
            "sketches": {n: s.to_wire() for n, s in self.sketches.items() if s.count},
            "outcomes": dict(self._outcomes),
            "batches": dict(self._batches),
            "call_tokens": dict(self._call_tokens),
            "labels": dict(self._labels),
            "first_sent_s": self.first_sent_s,
            "last_end_s": self.last_end_s,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """The tally that `to_wire` was called on."""
        tally = cls()
        for name, sketch in wire["sketches"].items():
            tally.sketches[name] = Sketch.from_wire(sketch)
        tally._outcomes.update(wire["outcomes"])
        tally._batches.update(wire["batches"])
        tally._call_tokens.update(wire["call_tokens"])
        tally._labels.update(wire["labels"])
        tally._span(wire["first_sent_s"], wire["last_end_s"])
        return tally
