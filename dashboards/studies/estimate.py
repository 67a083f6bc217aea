"""How long a study takes."""

from dashboards.studies.study import Plan
from loadgen.sweep.durations import ASSUMED_OVERHEAD_S, ASSUMED_START_S, spoken

QUICK_RUN_S, RUN_S = 7.0, 20.0
"""Of one run without a time, with its begin and end, on two cores; a full study sends three times
as much."""


def estimate(plan: Plan) -> str:
    """`21 runs, 5 engine starts, about 8 min on a quiet machine with two cores`."""
    run_s = _asked_s(plan) or (QUICK_RUN_S if plan.quick else RUN_S)
    seconds = plan.runs * run_s + plan.engine_starts * ASSUMED_START_S
    return (
        f"{plan.runs} runs, {plan.engine_starts} engine starts, about {spoken(seconds)} on a quiet"
        " machine with two cores"
    )


def _asked_s(plan: Plan) -> float | None:
    """Of a run with the longest `run-time` of the parts, which are written in seconds."""
    asked = [
        str(part.options.get("run-time", "")).removesuffix("s") for part in plan.parts.values()
    ]
    longest_s = max((float(each) for each in asked if each), default=None)
    return None if longest_s is None else longest_s + ASSUMED_OVERHEAD_S
