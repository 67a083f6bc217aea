"""A search as far as it has come: its trials, what they say, and which is next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadgen.saturate.judge import Judgement, judge
from loadgen.saturate.plan import Plan
from loadgen.saturate.search import Bracket, bracket_of, next_load
from loadgen.saturate.trial import Trial

Ending = Literal["found", "trials", "client", "target", "stopped"]
"""Why a search ended: the bracket is narrow enough or cannot be narrowed, `--max-trials`, the
client was saturated, the target died or a trial failed otherwise, a signal."""


@dataclass(frozen=True, slots=True)
class Step:
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
class Course:
    """Grows by each trial that is made."""

    plan: Plan
    trials: list[tuple[Step, Trial]] = field(default_factory=list)
    judgements: dict[float, Judgement] = field(default_factory=dict)

    def add(self, step: Step, trial: Trial) -> Judgement:
        """Take a finished trial; returns what is now known of its load."""
        self.trials.append((step, trial))
        judgement = judge(self.of_load(step.load), self.plan.objective)
        self.judgements[step.load] = judgement
        return judgement

    def of_load(self, load: float) -> Sequence[Trial]:
        """The trials at one load, in the order in which they were made."""
        return [trial for step, trial in self.trials if step.load == load]

    def next(self, number: int) -> Step | None:
        """The trial to make, to be called `number`; None when there is none left."""
        findings = [judgement.finding for judgement in self.judgements.values()]
        load = next_load(findings, self.plan.space)
        if load is None or self.is_used_up:
            return None
        repeat = 1 + len(self.of_load(load))
        seed = self.plan.seed + repeat - 1
        return Step(number, load, repeat, seed, self.plan.seconds(load))

    @property
    def is_used_up(self) -> bool:
        """Whether no further trial is allowed."""
        return len(self.trials) >= self.plan.most_trials

    @property
    def bracket(self) -> Bracket:
        """Where the limit lies, as far as it is known."""
        return bracket_of([judgement.finding for judgement in self.judgements.values()])

    @property
    def ending(self) -> Ending:
        """Why there is no next trial, where nothing else ended the search."""
        findings = [judgement.finding for judgement in self.judgements.values()]
        return "found" if next_load(findings, self.plan.space) is None else "trials"

    @property
    def ordered(self) -> Mapping[float, Judgement]:
        """By load, lowest first."""
        return dict(sorted(self.judgements.items()))
