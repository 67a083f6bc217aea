"""The end of a swarm in this process: requests in flight are waited for before users are stopped.

Locust stops all its users in one go, which at a thousand of them keeps the hub busy for 0.1 s. Were
replies still coming then, the last ones would seem late. So users of ours leave one by one, each
with its last reply, and Locust has next to none left to stop.
"""

import time
from typing import Any

from locust.runners import STATE_CLEANUP

from loadgen.swarm.engine import Engine
from loadgen.swarm.session import Session

LEAST_STOP_S = 0.001
"""0 would tell Locust to kill its users at once."""


def drain(environment: Any, session: Session) -> None:
    """Wait for requests in flight; what is left of the stop timeout is Locust's to wait."""
    if _has_strangers(environment):
        return
    _begin_cleanup(environment.runner)
    timeout_s = environment.stop_timeout or 0.0
    end_s = time.monotonic() + timeout_s
    Engine.of_process().run(session.drain(timeout_s))
    if timeout_s:
        environment.stop_timeout = max(LEAST_STOP_S, end_s - time.monotonic())


def _has_strangers(environment: Any) -> bool:
    """Whether there are users who send nothing of ours, and would go on meanwhile."""
    users = environment.runner.user_classes_count
    return any(
        users.get(each.__name__) and not hasattr(each, "sends_batches")
        for each in environment.user_classes
    )


def _begin_cleanup(runner: Any) -> None:
    """As Locust does when its listeners have been told: no new users, and who asks for the end
    a second time is not heard."""
    if runner.spawning_greenlet and not runner.spawning_greenlet.ready():
        runner.spawning_greenlet.kill(block=True)
    runner.update_state(STATE_CLEANUP)
