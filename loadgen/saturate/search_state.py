"""A search as far as it has come: its trials, what they say, and which is next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loadgen.errors import UsageError
from loadgen.saturate.judge import LEVEL, LoadJudgement, judge, needed_samples
from loadgen.saturate.objective import ERRORS, Objective
from loadgen.saturate.search import (
    CONFIRMING_RUNS,
    MOST_RUNS,
    Bracket,
    Finding,
    Space,
    bracket_of,
    next_load,
)
from loadgen.saturate.trial import Trial

ENOUGH = 1.5
"""Times the requests that prove a limit at best are wanted of one run."""
LONGEST = 4
"""Times `trial_s` a run may take for them."""
LEAST_TRIAL_S = 2.0
MOST_TRIALS = 10_000
OVERHEAD_S = 6.0
"""Of a run beyond its `--run-time`: its process, cold caches, the last replies."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
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
        if self.most_trials > MOST_TRIALS:
            raise UsageError(f"--max-trials: give at most {MOST_TRIALS:,}")
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


Ending = Literal["found", "trials", "client", "target", "stopped"]
"""Why a search ended: the bracket is narrow enough or cannot be narrowed, `--max-trials`, the
client was saturated, the target died or a trial failed otherwise, a signal."""


@dataclass(frozen=True, slots=True)
class TrialStep:
    """One trial: `number` counts all from 1, `repeat` those at its load."""

    number: int
    load: float
    repeat: int
    seed: int
    seconds: int

    @property
    def name(self) -> str:
        """The folder of its run."""
        return f"{self.number:02d}-{self.load:g}"


@dataclass(slots=True)
class SearchState:
    """Grows by each trial that is made."""

    plan: SearchPlan
    trials: list[tuple[TrialStep, Trial]] = field(default_factory=list)
    judgements: dict[float, LoadJudgement] = field(default_factory=dict)

    def add(self, step: TrialStep, trial: Trial) -> LoadJudgement:
        """Take a finished trial; returns what is now known of its load."""
        self.trials.append((step, trial))
        judgement = judge(self.of_load(step.load), self.plan.objective)
        self.judgements[step.load] = judgement
        return judgement

    def of_load(self, load: float) -> Sequence[Trial]:
        """The trials at one load, in the order in which they were made."""
        return [trial for step, trial in self.trials if step.load == load]

    def next(self, number: int) -> TrialStep | None:
        """The trial to make, to be called `number`; None when there is none left."""
        load = next_load(self._findings, self.plan.space)
        if load is None or len(self.trials) >= self.plan.most_trials:
            return None
        repeat = 1 + len(self.of_load(load))
        seed = self.plan.seed + repeat - 1
        return TrialStep(number, load, repeat, seed, self.plan.seconds(load))

    @property
    def bracket(self) -> Bracket:
        """Where the limit lies, as far as it is known."""
        return bracket_of(self._findings)

    @property
    def ending(self) -> Ending:
        """Why there is no next trial, where nothing else ended the search."""
        return "found" if next_load(self._findings, self.plan.space) is None else "trials"

    @property
    def _findings(self) -> list[Finding]:
        return [judgement.finding for judgement in self.judgements.values()]

    @property
    def ordered(self) -> Mapping[float, LoadJudgement]:
        """By load, lowest first."""
        return dict(sorted(self.judgements.items()))
