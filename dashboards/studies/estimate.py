"""How long a study takes."""

from dashboards.studies.study import Plan
from loadgen.sweep.durations import ASSUMED_START_S, spoken

QUICK_RUN_S, RUN_S = 6.0, 20.0
"""Of one run with its begin and end, on two cores; a full study sends three times as much."""


def estimate(plan: Plan) -> str:
    """`21 runs, 5 engine starts, about 8 min on a quiet machine with two cores`."""
    run_s = QUICK_RUN_S if plan.quick else RUN_S
    seconds = plan.runs * run_s + plan.engine_starts * ASSUMED_START_S
    return (
        f"{plan.runs} runs, {plan.engine_starts} engine starts, about {spoken(seconds)} on a quiet"
        " machine with two cores"
    )
