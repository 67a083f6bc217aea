"""What the growing tally of a run gained over the last seconds."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from loadgen.stats.sketch import GAMMA, Sketch
from loadgen.stats.tally import Tally

WINDOW_S = 5
METRICS = ("ttft_ms", "itl_ms")
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Reading:
    """A tally at one moment; `sketches` are those of `METRICS` in their wire form."""

    at_s: float
    ok: int
    failed: int
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    tells_cached: bool
    judged: int
    good: int
    sketches: tuple[dict[str, Any], ...]

    @classmethod
    def take(cls, tally: Tally, at_s: float) -> "Reading":
        """Read the tally now, `at_s` seconds after the run's start."""
        return cls(
            at_s=at_s,
            ok=tally.ok,
            failed=tally.failed,
            output_tokens=tally.output_tokens,
            prompt_tokens=tally.prompt_tokens,
            cached_tokens=tally.cached_tokens,
            tells_cached=tally.sketches["cached_tokens"].count > 0,
            judged=tally.judged,
            good=tally.good or 0,
            sketches=tuple(tally.sketches[name].to_wire() for name in METRICS),
        )


class Window:
    """The last readings, a second apart: their ends tell rates, shares and quantiles."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=WINDOW_S + 1)

    def add(self, reading: Reading) -> None:
        self._readings.append(reading)

    def per_s(self, name: str) -> float:
        """By how much a count rose in a second; 0 until there are two readings."""
        first, last = self._readings[0], self._readings[-1]
        span_s = last.at_s - first.at_s
        return (getattr(last, name) - getattr(first, name)) / span_s if span_s > 0 else 0.0

    @property
    def told_hit_rate(self) -> float | None:
        """Cached over all prompt tokens by the replies, None where they do not tell."""
        first, last = self._readings[0], self._readings[-1]
        tokens = last.prompt_tokens - first.prompt_tokens
        if not last.tells_cached or tokens <= 0:
            return None
        return (last.cached_tokens - first.cached_tokens) / tokens

    @property
    def goodput_share(self) -> float | None:
        """Requests within their objective over those held against one, None where none ended."""
        first, last = self._readings[0], self._readings[-1]
        judged = last.judged - first.judged
        return (last.good - first.good) / judged if judged > 0 else None

    def quantiles(self, metric: str) -> tuple[float | None, ...]:
        """p50, p95 and p99 of what was added to a sketch, each None where nothing was."""
        at = METRICS.index(metric)
        gained = gain(self._readings[0].sketches[at], self._readings[-1].sketches[at])
        return tuple(gained.quantile(q) for q in QUANTILES)


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
        gained.add(GAMMA**index * 2 / (GAMMA + 1), count)
    return gained
