"""What a search is to be, and how long it takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.errors import UsageError
from loadgen.saturate.judge import LEVEL, needed_samples
from loadgen.saturate.objective import ERRORS, Objective
from loadgen.saturate.search import CONFIRMING_RUNS, MOST_RUNS
from loadgen.saturate.space import Space

ENOUGH = 1.5
"""Times the requests that prove a limit at best are wanted of one run."""
LONGEST = 4
"""Times `trial_s` a run may take for them."""
LEAST_TRIAL_S = 2.0
OVERHEAD_S = 6.0
"""Of a run beyond its `--run-time`: its process, cold caches, the last replies."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`words` are the options of `kvswarm run` that all trials share, without those that the search
    sets itself. `warm_up_s` is None where each run shows it. Raises UsageError."""

    objective: Objective
    space: Space
    trial_s: float
    most_trials: int
    seed: int
    warm_up_s: float | None
    words: Sequence[str]

    def __post_init__(self) -> None:
        if not LEAST_TRIAL_S <= self.trial_s < math.inf:
            raise UsageError(f"--trial {self.trial_s:g}: give {LEAST_TRIAL_S:g} seconds or more")
        if self.most_trials < 1:
            raise UsageError(f"--max-trials {self.most_trials} makes no run: give 1 or more")
        if self.warm_up_s is not None and not 0 <= self.warm_up_s < self.trial_s:
            raise UsageError(
                f"--warm-up {self.warm_up_s:g}: give seconds below those of --trial"
                f" ({self.trial_s:g})"
            )

    def seconds(self, load: float) -> int:
        """How long a run at this load is: longer than `--trial` where that is too short to prove a
        percentile. By users it is not known beforehand what they will send."""
        if self.space.by == "users":
            return math.ceil(self.trial_s)
        level = 1 - (1 - LEVEL) / len(self.objective.limits)
        wanted = [
            needed_samples(limit, level)
            for limit in self.objective.limits
            if limit.statistic.metric.name != ERRORS
        ]
        most = load * self.trial_s * LONGEST * MOST_RUNS
        reachable = max((each for each in wanted if each <= most), default=0)
        return math.ceil(min(max(self.trial_s, ENOUGH * reachable / load), LONGEST * self.trial_s))

    @property
    def time_s(self) -> tuple[float | None, float]:
        """Seconds of a search without repeats for want of data, None where `--to` is not given; and
        the most that `most_trials` can take."""
        most = self.most_trials * (self.seconds(self.space.first) + OVERHEAD_S)
        last = self.space.last
        if last is None:
            return None, most
        loads, load = [self.space.first], self.space.first
        while (beyond := self.space.beyond(load)) is not None:
            loads.append(load := beyond)
        inside = self.space.steps(loads[-2], last) + 2 * (CONFIRMING_RUNS - 1)
        usual = sum(self.seconds(load) + OVERHEAD_S for load in loads)
        usual += inside * (self.seconds(loads[-2]) + OVERHEAD_S)
        return min(usual, most), most

    @property
    def as_json(self) -> Mapping[str, Any]:
        """What two searches must have in common to be one that was interrupted."""
        return {
            "objective": str(self.objective),
            "by": self.space.by,
            "from": self.space.first,
            "to": self.space.last,
            "tolerance": self.space.tolerance,
            "trial_s": self.trial_s,
            "warm_up_s": self.warm_up_s,
            "seed": self.seed,
        }
