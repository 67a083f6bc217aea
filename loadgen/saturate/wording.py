"""What is said of a trial, and of the result."""

from collections.abc import Iterator

from loadgen.compare.metrics import figure
from loadgen.saturate.judge import LimitFigure, LoadJudgement
from loadgen.saturate.objective import ERRORS
from loadgen.saturate.search import Finding
from loadgen.saturate.search_state import Ending, SearchPlan, SearchState, TrialStep
from loadgen.saturate.trial import Trial
from loadgen.sweep.runner import spoken

NOT_MET = {"missed": "not met", "undecided": "undecided"}
ENDED = {
    "trials": "--max-trials is used up before the bracket is as narrow as --tolerance",
    "client": "the client was saturated: it is the limit here, not the engine",
    "target": "a trial failed",
    "stopped": "stopped",
}


def plan_line(plan: SearchPlan) -> str:
    """What will be done and how long it takes."""
    usual_s, most_s = plan.time_s
    space = plan.space
    to = f" to {space.said(space.last)}" if space.last is not None else " upwards"
    usual = f"about {spoken(usual_s)} without repeats, " if usual_s is not None else ""
    seconds = plan.seconds(space.first)
    shorter = f", of {plan.trial_s:g} s where more is sent" if seconds > plan.trial_s else ""
    return (
        f"objective {plan.objective}; from {space.said(space.first)}{to}; trials of {seconds} s"
        f"{shorter}, at most {plan.most_trials}: {usual}at most {spoken(most_s)}"
    )


def trial_line(step: TrialStep, trial: Trial, judgement: LoadJudgement, plan: SearchPlan) -> str:
    """One trial, and what is now known of its load."""
    finding, outcomes = judgement.finding, trial.outcomes
    verdict = NOT_MET.get(finding.verdict, "met")
    runs = f" by {finding.runs} runs" if finding.runs > 1 else ""
    reason = f"; {judgement.reason}" if judgement.reason else ""
    drift = ", never settled" if trial.settled is False else ""
    return (
        f"[{step.number}] {plan.space.said(step.load)} for {step.seconds} s: {verdict}{runs}:"
        f" {figures(judgement)}{reason}; {outcomes['arrivals']} requests after a warm-up of"
        f" {trial.warm_up_s:.1f} s{drift}"
    )


def figures(judgement: LoadJudgement) -> str:
    """Each limit's figure with its interval."""
    return ", ".join(map(_figure, judgement.figures))


def _figure(each: LimitFigure) -> str:
    name, interval, share = each.limit.statistic.name, each.interval, each.within
    within = (
        f", {100 * share.estimate:.3g} % within it [{100 * share.low:.3g}, {100 * share.high:.3g}]"
        if share
        else ""
    )
    if interval is None or each.samples < each.limit.statistic.least_values:
        return f"{name} of {each.samples} requests, which are too few{within}"
    estimate, low, high = (
        figure(each.limit.statistic, value)
        for value in (interval.estimate, interval.low, interval.high)
    )
    return f"{name} {estimate} [{_bare(low)}, {_bare(high)}]{within}"


def _bare(said: str) -> str:
    """Without the unit, which the estimate has."""
    return said.partition(" ")[0]


def result_lines(state: SearchState, ending: Ending) -> Iterator[str]:
    """The result first, then what has to be known of it."""
    yield _result(state, ending)
    space, bracket = state.plan.space, state.bracket
    if ending in ENDED:
        yield f"{ENDED[ending]}."
    for finding in bracket.beside:
        yield (
            f"{space.said(finding.load)} met it too, above {_end(state, bracket.above)}: the"
            " results do not fall with the load, the machine or the trials are too noisy for"
            " a narrower bracket."
        )
    below = bracket.below
    for each in state.judgements[below.load].unproven if below else ():
        yield (
            f"{each.limit.text} is met by its estimate alone: {each.needed} requests are needed to"
            f" prove it, there were {each.samples}. A longer --trial has more."
        )
    if below and (errors := _errors_remark(state.judgements[below.load])):
        yield errors


def _result(state: SearchState, ending: Ending) -> str:
    space, bracket = state.plan.space, state.bracket
    what = "rate" if space.by == "rate" else "number of users"
    if not state.judgements:
        return f"no {what} was tried to its end."
    if bracket.below is None:
        assert bracket.above is not None
        if bracket.above.verdict == "undecided":
            return (
                f"undecided at {space.said(bracket.above.load)}, the lowest {what}:"
                f" {_told(state, bracket.above)}. Give a longer --trial, or a lower --from."
            )
        return (
            f"not met even at {space.said(bracket.above.load)}, the lowest {what}:"
            f" {_told(state, bracket.above)}. Give a lower --from."
        )
    met = f"{space.said(bracket.below.load)} met: {_told(state, bracket.below)}"
    if bracket.above is None:
        end = "--to" if ending == "found" else "the highest that was tried"
        load = space.said(bracket.below.load)
        return f"highest {what} found to meet it: at least {load}, {end} ({met})."
    return (
        f"highest {what} found to meet it: {space.said(bracket.below.load)} ({met};"
        f" {_end(state, bracket.above)}: {_told(state, bracket.above)})."
    )


def _end(state: SearchState, finding: Finding | None) -> str:
    assert finding is not None
    return f"{state.plan.space.said(finding.load)} {NOT_MET.get(finding.verdict, 'met')}"


def _told(state: SearchState, finding: Finding) -> str:
    judgement = state.judgements[finding.load]
    return "; ".join(part for part in (figures(judgement), judgement.reason) if part)


def _errors_remark(judgement: LoadJudgement) -> str:
    """Few errors may be none by chance."""
    for each in judgement.figures:
        high = each.interval.high if each.interval else 0.0
        if each.limit.statistic.name == ERRORS and high > each.limit.bound:
            return (
                f"{each.limit.text} is judged by what was seen: up to"
                f" {figure(each.limit.statistic, high)} is possible after {each.samples}"
                f" requests, {each.needed} would prove it."
            )
    return ""
