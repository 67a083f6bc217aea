"""One row of figures each second, from what a run counts anyway."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dashboards.live_tab.series import Figures, short_of_whole
from loadgen.stats.metrics import CATALOG, figure_of
from loadgen.stats.self_watch import ClientSample
from loadgen.stats.server_counters import ENGINE_FIGURES, ServerSample, server_figures
from loadgen.stats.sketch import Sketch, bucket_middle
from loadgen.stats.tally import Tally

WINDOW_S = 5
METRICS = ("ttft_ms", "itl_ms")
QUANTILES = (0.5, 0.95, 0.99)
NEWS_S = 2.5
"""An engine is asked each second: two answers that tell nothing new are one late step of it."""

_told = attrgetter(*ENGINE_FIGURES)
_counted = attrgetter("prompt_tokens", "generation_tokens", "request_success")


@dataclass(frozen=True, slots=True)
class Reading:
    """A tally at one moment; `sketches` are those of `METRICS` in their wire form."""

    at_s: float
    counts: Mapping[str, float | None]
    sketches: tuple[dict[str, Any], ...]

    @classmethod
    def take(cls, tally: Tally, at_s: float) -> "Reading":
        """Read the tally now, `at_s` seconds after the run's start."""
        sketches = tuple(tally.sketches[name].to_wire() for name in METRICS)
        return cls(at_s, tally.counts, sketches)


class Window:
    """The last readings, a second apart: their ends tell rates, shares and quantiles."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=WINDOW_S + 1)

    def add(self, reading: Reading) -> None:
        self._readings.append(reading)

    def _gained(self, name: str) -> float | None:
        before, now = (self._readings[at].counts[name] for at in (0, -1))
        return None if now is None else now - (before or 0)

    def per_s(self, name: str) -> float:
        """By how much one of `metrics.COUNTS` rose in a second; 0 until there are two readings."""
        span_s = self._readings[-1].at_s - self._readings[0].at_s
        return (self._gained(name) or 0) / span_s if span_s > 0 else 0.0

    def share(self, name: str) -> float | None:
        """A share of the catalogue, of what came in these seconds; None where it is not known."""
        metric = CATALOG[name]
        gained = {each: self._gained(each) for each in (metric.part, metric.whole)}
        return figure_of(metric, gained, 0.0)

    def quantiles(self, metric: str) -> tuple[float | None, ...]:
        """p50, p95 and p99 of what was added to a sketch, each None where that was too little."""
        at = METRICS.index(metric)
        gained = gain(self._readings[0].sketches[at], self._readings[-1].sketches[at])
        return tuple(gained.known_quantile(q) for q in QUANTILES)


def gain(first: dict[str, Any], last: dict[str, Any]) -> Sketch:
    """The sketch of what came between two wire forms of one sketch that only grew.

    Its smallest and largest value are known as well as their buckets: 0.5 %.
    """
    before = dict(zip(first["index"], first["in"], strict=True))
    counts = {
        index: count - before.get(index, 0)
        for index, count in zip(last["index"], last["in"], strict=True)
        if count > before.get(index, 0)
    }
    gained = Sketch()
    gained.add(0.0, last["zeros"] - first["zeros"])
    for index, count in counts.items():
        gained.add(bucket_middle(index), count)
    return gained


if TYPE_CHECKING:
    from loadgen.swarm.leading.swarm_run import SwarmRun


class Sampler:
    """Reads one run."""

    def __init__(self, run: "SwarmRun") -> None:
        self.saturated = ""
        """Why the client cannot be trusted; empty while it can."""
        self.engine_age_s: int | None = None
        """How long ago the engine last told anything new, where that is not now."""
        self._run = run
        self._window = Window()
        self._clients: list[ClientSample] = []
        self._clients_read = run.ledger.clients.count

    def take(self) -> Figures:
        """The values of this second, in the order of `series.COLUMNS`."""
        run, window, at_s = self._run, self._window, self._run.now_s
        window.add(Reading.take(run.ledger.tally, at_s))
        self.saturated = run.ledger.clients.verdict().reason
        measured = (
            window.per_s("ok"),
            window.per_s("failed"),
            window.per_s("output_tokens"),
            short_of_whole(window.share("goodput_share")),
            *window.quantiles("ttft_ms"),
            *window.quantiles("itl_ms"),
            *self._cache(),
            *self._load_generator(),
        )
        return (round(at_s, 1), run.users, *map(_rounded, measured))

    @property
    def engine_note(self) -> str | None:
        """Why there are no figures of the engine; None where there are some."""
        server = self._run.server
        if server.whole.told:
            return None
        if not self._run.preparation.facts.has_metrics:
            return "The host has no /metrics: it tells nothing of its cache and queue."
        if not server.recent or not server.recent[-1].reachable:
            return "The host's /metrics does not answer."
        return "The host's /metrics tells nothing of cache and queue under a name that we know."

    def _cache(self) -> Figures:
        """Of the engine: hit rates of the last seconds, and what it holds at this moment.

        An engine in a long step, or too busy to answer, shows what it held before: that is not of
        this moment, and would look like a stall.
        """
        samples = [*self._run.server.recent][-WINDOW_S - 1 :] or [ServerSample(0.0)]
        gained = server_figures(samples[0], samples[-1])
        news = last_news(self._run.server.recent)
        age_s = self._run.now_s - news.at_s
        self.engine_age_s = round(age_s) if NEWS_S < age_s < math.inf else None
        last = news if age_s <= NEWS_S else ServerSample(0.0)
        shares = (
            gained["hit_rate"],
            gained["external_hit_rate"],
            self._window.share("cached_share"),
            last.kv_cache_usage,
        )
        return (*map(short_of_whole, shares), last.running, last.waiting)

    def _load_generator(self) -> Figures:
        """The worst process by its last samples: those of a second may come in the next one."""
        clients = self._run.ledger.clients
        self._clients = clients.since(self._clients_read) or self._clients
        self._clients_read = clients.count
        late = [each.send_lateness_p99_ms for each in self._clients]
        return (
            max((each.loop_lag_p99_ms for each in self._clients), default=None),
            max((ms for ms in late if ms is not None), default=None),
        )


def last_news(samples: Iterable[ServerSample]) -> ServerSample:
    """The last sample in which the engine told anything that the one before did not; -inf is its
    time where there is none. Without counters all may well stay as it is: then any sample is news.
    """
    telling = [each for each in samples if any(value is not None for value in _told(each))]
    if telling and all(value is None for value in _counted(telling[-1])):
        return telling[-1]
    pairs = pairwise(reversed(telling))
    never = ServerSample(-math.inf)
    return next((last for last, before in pairs if _told(last) != _told(before)), never)


def _rounded(value: float | bool | None) -> float | None:
    """Four significant digits are more than a chart shows."""
    return None if value is None else float(f"{value:.4g}")
