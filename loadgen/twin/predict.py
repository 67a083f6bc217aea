"""What a twin says of a load on an engine of another size or order."""

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.errors import UsageError
from loadgen.runs.columns import Floats
from loadgen.twin.engine import EngineShape
from loadgen.twin.ledger import EngineLedger
from loadgen.twin.load import RecordedLoad
from loadgen.twin.model import TwinModel, add_lengths
from loadgen.twin.routing import ONE_ENGINE, AsRecorded, Fleet
from loadgen.twin.sending import Outgoing
from loadgen.twin.serve import OfferedLoad, OnServed, ServedRequest, TwinServer

TIMES = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p95_ms", "e2e_mean_ms")
RATE = "requests_per_s"
THINKS = 0.01
"""Of what users wait for replies: who thinks for longer in between sends at times of its own."""
EDGE = 2.0
"""From so many times on that a figure grows by on a server slower by what runs differ, the load is
at the edge of what the server holds."""


@dataclass(frozen=True, slots=True)
class TwinPrediction:
    """Figures by name, as in a sweep's table, with what a run may differ by from a time.

    `ttft_s` and `e2e_s` are of the requests that were served to their end; `cut` others were cut
    off, and `unsent` is what was due and never sent: `open_ttft_s` and `open_e2e_s` are what both
    had waited at least. `ledger` is that of all `replicas` together. `outside` says in words which
    lengths of requests the twin was not made from, and more that intervals do not hold.
    """

    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    ttft_s: Floats
    e2e_s: Floats
    open_ttft_s: Floats
    open_e2e_s: Floats
    cut: int
    unsent: Sequence[Outgoing]
    ledger: EngineLedger
    replicas: tuple[EngineLedger, ...]
    outside: tuple[str, ...]
    is_at_edge: bool = False

    def may_queue(self, load: OfferedLoad) -> bool:
        """Whether a little speed may be a long queue: requests of this load come at times of their
        own. Users who wait only for replies slow down with a server."""
        pace = load.pace
        thinks_ms = 1000 * sum(pace.gaps_s) / len(pace.gaps_s)
        return pace.is_open or thinks_ms > THINKS * self.figures["e2e_mean_ms"]


class _Collector:
    """Takes the times of what is served and counts, and passes all of it on."""

    def __init__(self, on_served: OnServed | None, counted: Collection[str] | None) -> None:
        self._on_served, self._counted = on_served, counted
        self._ttft_s, self._e2e_s = array("d"), array("d")
        self._open_ttft_s, self._open_e2e_s = array("d"), array("d")
        self.first_s, self.last_s = math.inf, -math.inf
        self.cut = self.computed_tokens = 0
        self.lengths: dict[str, tuple[int, int]] = {}

    def take(self, each: ServedRequest) -> None:
        add_lengths(self.lengths, each.request)
        if self._counted is None or each.request.name in self._counted:
            self._count(each)
        if self._on_served is not None:
            self._on_served(each)

    def _count(self, each: ServedRequest) -> None:
        self.first_s = min(self.first_s, each.sent_s)
        self.last_s = max(self.last_s, each.end_s)
        self.computed_tokens += len(each.request.prompt) - (each.tokens.cached or 0)
        if each.is_cut:
            self.cut += 1
            has_begun = not math.isnan(each.first_token_s)
            self._open_ttft_s.append(each.ttft_s if has_begun else each.e2e_s)
            self._open_e2e_s.append(each.e2e_s)
        else:
            self._ttft_s.append(each.ttft_s)
            self._e2e_s.append(each.e2e_s)

    def never_sent(self, outgoing: Outgoing, end_s: float) -> None:
        """What was still due at the end."""
        waited_s = [end_s - outgoing.scheduled_s] * len(outgoing.unit.requests)
        self._open_ttft_s.extend(waited_s)
        self._open_e2e_s.extend(waited_s)

    @property
    def open_s(self) -> tuple[Floats, Floats]:
        """What those waited that had no end, for TTFT and E2E."""
        return np.array(self._open_ttft_s), np.array(self._open_e2e_s)

    def times_s(self) -> tuple[Floats, Floats]:
        """TTFT and E2E. Raises UsageError where nothing was served."""
        if not self._ttft_s:
            raise UsageError("no request was served to its end: give a longer run (-t)")
        return np.array(self._ttft_s), np.array(self._e2e_s)


def predict_load(
    model: TwinModel,
    load: OfferedLoad,
    shape: EngineShape,
    fleet: Fleet = ONE_ENGINE,
    *,
    router: AsRecorded | None = None,
    on_served: OnServed | None = None,
    counted: Collection[str] | None = None,
) -> TwinPrediction:
    """Serve the load on the twin of an engine of this shape, or of a fleet of them, behind this
    router or its own. `on_served` is told each request, in the order of their ends. Figures are of
    those that are `counted`, by name, of all without. Raises UsageError where nothing comes of it.
    """
    server = TwinServer(
        load, shape, model.step, model.front, fleet=fleet, router=router, is_whole=False
    )
    collector = _Collector(on_served, counted)
    server.serve_each(collector.take)
    for outgoing in server.unsent:
        collector.never_sent(outgoing, load.pace.end_s)
    ttft_s, e2e_s = collector.times_s()
    open_ttft_s, open_e2e_s = collector.open_s
    ledger = EngineLedger.merged(server.ledgers)
    figures = figures_of(ttft_s, e2e_s, collector.last_s - collector.first_s)
    computed = ledger.computed_tokens if counted is None else collector.computed_tokens
    figures["computed_prompt_tokens"] = float(computed)
    names = TIMES if load.pace.is_open else (*TIMES, RATE)
    intervals = {name: model.interval(figures[name], name) for name in names}
    return TwinPrediction(
        figures=figures,
        intervals=intervals,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        open_ttft_s=open_ttft_s,
        open_e2e_s=open_e2e_s,
        cut=collector.cut,
        unsent=server.unsent,
        ledger=ledger,
        replicas=tuple(server.ledgers),
        outside=tuple(model.outside(collector.lengths, fleet.replicas)),
    )


def with_edges(
    prediction: TwinPrediction,
    model: TwinModel,
    load: OfferedLoad,
    shape: EngineShape,
    fleet: Fleet = ONE_ENGINE,
    *,
    router: AsRecorded | None = None,
    counted: Collection[str] | None = None,
) -> TwinPrediction:
    """The same of an open loop, or of users who think, with intervals that also hold what comes of
    it on a server that is faster or slower by what nine of ten runs differ by. Near its capacity a
    little speed is a long queue: then `outside` says so. Of another closed loop as it is."""
    factor = model.speed_factor
    if not prediction.may_queue(load) or factor == math.inf:
        return prediction
    fast, slow = (
        _figures(model.slower(each), load, shape, fleet, router, counted)
        for each in (1 / factor, factor)
    )
    intervals = {}
    for name, (low, high) in prediction.intervals.items():
        least, most = (slow, fast) if name == RATE else (fast, slow)
        intervals[name] = min(low, least.get(name, 0.0)), max(high, most.get(name, math.inf))
    mean = "ttft_mean_ms"
    grows = slow.get(mean, math.inf) / prediction.figures[mean]
    found = replace(prediction, intervals=intervals)
    if grows < max(EDGE, factor * factor):
        return found
    words = (
        f"at the edge of what it holds: on a server slower by {factor - 1:.0%}, as one of twenty"
        f" runs may be, the mean TTFT is {grows:.1f} times as long"
    )
    return replace(found, is_at_edge=True, outside=(*found.outside, words))


def _figures(
    model: TwinModel,
    load: OfferedLoad,
    shape: EngineShape,
    fleet: Fleet,
    router: AsRecorded | None,
    counted: Collection[str] | None,
) -> Mapping[str, float]:
    """Empty where nothing is served to its end."""
    try:
        return predict_load(model, load, shape, fleet, router=router, counted=counted).figures
    except UsageError:
        return {}


def figures_of(ttft_s: Floats, e2e_s: Floats, duration_s: float) -> dict[str, float]:
    """Of replies; percentiles as everywhere, between neighbouring ranks."""
    p50, p95 = np.quantile(ttft_s, (0.5, 0.95))
    return {
        "ttft_mean_ms": 1000 * float(ttft_s.mean()),
        "ttft_p50_ms": 1000 * float(p50),
        "ttft_p95_ms": 1000 * float(p95),
        "e2e_mean_ms": 1000 * float(e2e_s.mean()),
        RATE: len(ttft_s) / duration_s,
    }


def measured_figures(load: RecordedLoad) -> dict[str, float]:
    """The same of what the run recorded."""
    known = list(load.measured.values())
    figures = figures_of(
        np.array([each.ttft_s for each in known]),
        np.array([each.e2e_s for each in known]),
        load.duration_s,
    )
    if load.computed_tokens is not None:
        figures["computed_prompt_tokens"] = float(load.computed_tokens)
    return figures
