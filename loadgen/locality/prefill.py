"""How fast an engine computes prompts, by a run of one user."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import theilslopes

from loadgen.errors import UsageError
from loadgen.runs.recorded import RecordedRun

LEAST_REQUESTS, LEAST_FACTOR = 10, 1.2
MOST_REQUESTS = 800


class Interval95(NamedTuple):
    """Ends of a 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PrefillRate:
    """Prompt tokens computed a second, with its interval."""

    tokens_per_s: float
    within: Interval95
    requests: int

    @property
    def words(self) -> str:
        """Whose figure it is."""
        low, high = self.within
        return (
            f"{self.requests} requests of the run: the slope of TTFT against computed tokens, 95 %"
            f" interval {low:,.0f} to {high:,.0f}"
        )


def prefill_rate(path: Path) -> PrefillRate:
    """By the median of the slopes of TTFT between all pairs of requests that computed more and less
    of their prompts (Theil 1950, Sen 1968). Raises UsageError where a run does not tell it."""
    run = RecordedRun(path, is_strict=True)
    requests = run.requests
    if (users := run.description.get("users")) not in (None, 1):
        raise UsageError(
            f"{path} had {users} users, who waited for each other: give a run with -u 1, or"
            " --prefill-rate"
        )
    ttft_s = requests.number("ttft_ms") / 1000
    computed = requests.number("prompt_tokens") - np.nan_to_num(requests.cached_tokens)
    known = requests.ok & ~np.isnan(ttft_s) & ~np.isnan(computed)
    ttft_s, computed = ttft_s[known][:MOST_REQUESTS], computed[known][:MOST_REQUESTS]
    if len(computed) < LEAST_REQUESTS or computed.max() < LEAST_FACTOR * max(computed.min(), 1):
        raise UsageError(
            f"{path} does not tell it: {len(computed)} requests that computed about as many tokens"
            f" each; {LEAST_REQUESTS} of different lengths are needed, or --prefill-rate"
        )
    slope, _, low, high = theilslopes(ttft_s, computed)
    if not low > 0:  # nor NaN, of times that are all alike
        raise UsageError(f"{path} does not tell it: TTFT does not grow with what is computed")
    return PrefillRate(float(1 / slope), Interval95(float(1 / high), float(1 / low)), len(computed))
