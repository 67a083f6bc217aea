"""Names of kvswarm's messages between master and workers."""

PLAN = "kvswarm_plan"
DELTA = "kvswarm_delta"
DRAIN = "kvswarm_drain"
SPENT = "kvswarm_spent"
DRAINED = "kvswarm_drained"
