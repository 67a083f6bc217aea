"""Whether an engine keeps up: how many requests are due and not done, over the time of a run."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from loadgen.runs.columns import Floats

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
