"""What the master says of its workers."""

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from loadgen.swarm.leading import worker_registry
from loadgen.swarm.leading.clock_offset import ClockOffset
from loadgen.swarm.leading.worker_registry import RunWorkers, WorkerRegistry
from loadgen.swarm.sending.plan import Plan


class Swarm:
    """A master with four workers that are ready."""

    def __init__(self) -> None:
        names = ["a", "b", "c", "d"]
        ready = [SimpleNamespace(id=name) for name in names]
        self.clients = SimpleNamespace(ready=ready, spawning=[], running=[])
        self.worker_indexes = names
        self.said: list[str] = []
        self.sent: list[tuple[Any, ...]] = []
        self.registry = WorkerRegistry(self)
        indexes = {name: index for index, name in enumerate(names)}
        plan = Plan(0.0, "http://host", "m", False, {}, indexes, {}, False, False)
        self.workers = RunWorkers(self.registry, plan, self.said.append)
        self.workers.send_plan()

    def send_message(self, *message: Any) -> None:
        self.sent.append(message)

    def lose(self, *names: str) -> None:
        ready = self.clients.ready
        self.clients.ready = [client for client in ready if client.id not in names]
        self.workers.look()


def test_the_share_of_lost_workers_is_told_once_for_each_loss() -> None:
    swarm = Swarm()
    swarm.lose()
    assert (swarm.workers.lost_share, swarm.said) == (0.0, [])
    swarm.lose("c")
    swarm.lose()
    (first,) = swarm.said
    assert first.startswith("worker(s) 2 of 4 lost at ")
    assert "a share of 25% of the requests" in first
    swarm.lose("a", "d")
    assert swarm.said[1].startswith("worker(s) 0, 3 of 4 lost at ")
    assert (swarm.workers.lost, swarm.workers.lost_share) == (3, 0.75)


def test_a_clock_that_is_set_does_not_date_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 90.0)
    swarm = Swarm()
    monkeypatch.setattr(time, "time", lambda: -3500.0)
    swarm.lose("c")
    assert swarm.said[0].startswith("worker(s) 2 of 4 lost at 9")


def test_workers_that_were_told_to_end_before_the_start_are_not_lost() -> None:
    swarm = Swarm()
    swarm.workers.let_go()
    swarm.lose("a", "b")
    swarm.workers.drain(0.1)
    swarm.lose("c", "d")
    assert (swarm.workers.lost, swarm.said, swarm.workers.fault) == (0, [], None)


def test_a_worker_that_was_silent_for_long_takes_part_again() -> None:
    swarm = Swarm()
    everybody = swarm.clients.ready
    swarm.lose("c")
    swarm.clients.ready = everybody
    swarm.workers.look()
    assert (swarm.workers.lost, swarm.said[-1]) == (
        0,
        "1 worker(s) that were taken for lost are back",
    )
    for name in "abd":
        swarm.workers.spent(name)
    assert not swarm.workers.all_spent


def test_a_worker_that_cannot_do_its_part_is_lost_for_good() -> None:
    swarm = Swarm()
    assert swarm.workers.fault is None
    swarm.workers.failed("b", "the corpus is gone")
    swarm.workers.failed("c", "so is mine")
    swarm.workers.look()
    assert (swarm.workers.lost, swarm.workers.lost_share, swarm.said) == (2, 0.5, [])
    fault = swarm.workers.fault or ""
    assert fault.startswith("worker 1 ")
    assert fault.endswith(" cannot do its part: the corpus is gone")
    for name in "ad":
        swarm.workers.spent(name)
    assert swarm.workers.all_spent, "nobody waits for those that failed"


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (ClockOffset(2.5, 0.001), "worker 1 is 2.500 s behind the master's"),
        (ClockOffset(-0.25, 0.001), "worker 1 is 0.250 s ahead of the master's"),
        (ClockOffset(0.02, 0.001), ""),
        (ClockOffset(0.5, 0.6), ""),
    ],
)
def test_clocks_far_apart_are_told(offset: ClockOffset, said: str) -> None:
    swarm = Swarm()
    swarm.workers.corrected("b", offset)
    assert len(swarm.said) == bool(said)
    assert said in "".join(swarm.said)


def test_who_asks_gets_the_masters_time() -> None:
    swarm = Swarm()
    swarm.registry.tell_time("b", {"asked_unix_s": 5.0})
    _, answer, client_id = swarm.sent[-1]
    assert client_id == "b"
    assert answer["asked_unix_s"] == 5.0
    assert answer["master_unix_s"] > 1_700_000_000


def test_a_start_waits_for_the_worker_that_does_not_know_the_time_yet() -> None:
    swarm = Swarm()
    for name in swarm.worker_indexes[:-1]:
        swarm.registry.tell_time(name, {"asked_unix_s": 5.0})
    last = gevent.spawn_later(0.1, swarm.registry.tell_time, "d", {"asked_unix_s": 5.0})
    swarm.registry.await_clocks()
    assert last.successful()


def test_a_worker_that_never_asks_does_not_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_registry, "CLOCKS_S", 0.05)
    swarm = Swarm()
    swarm.registry.await_clocks()
    assert not swarm.said


LEADER = """
from types import SimpleNamespace
from loadgen.swarm.leading import leader as module
from loadgen.swarm.leading.leader import Leader
options = SimpleNamespace(host="http://127.0.0.1:1", key_host=None)
environment = SimpleNamespace(
    runner=None, host=options.host, parsed_options=options,
    user_classes=[], available_user_classes=None,
)
leader = Leader(environment, None)
merged = []
"""
EARLIER_RUN = """
ledger, plan = SimpleNamespace(merge=merged.append), SimpleNamespace(start_unix_s=2.0)
late, current = ({"run": start_unix_s} for start_unix_s in (1.0, 2.0))
for is_over in (False, True):
    leader.run = SimpleNamespace(plan=plan, ledger=ledger, is_over=is_over)
    for data in (late, current):
        leader.take_delta(None, SimpleNamespace(data=data))
assert merged == [current]
"""


LATE_WORKER = """
from locust import User
from locust.runners import WorkerNode
from loadgen.swarm.leading.leader import RunDispatcher

here, late = WorkerNode("host_a"), WorkerNode("host_b")
dispatcher = RunDispatcher(lambda client_id: client_id == "host_a", [here], [User])
dispatcher.new_dispatch(4, 100)
assert list(dispatcher)[-1] == {"host_a": {"User": 4}}
for change in (dispatcher.add_worker, dispatcher.remove_worker):
    change(late)
    dispatcher.new_dispatch(6, 100)
    assert list(dispatcher)[-1] == {"host_a": {"User": 6}}
again = RunDispatcher(lambda client_id: client_id == "host_a", [late, here], [User])
again.new_dispatch(4, 100)
assert list(again)[-1] == {"host_a": {"User": 4}}
"""


def test_users_are_not_moved_to_a_worker_that_came_too_late() -> None:
    subprocess.run([sys.executable, "-c", LATE_WORKER], check=True, timeout=60)


def test_what_a_worker_tells_of_an_earlier_run_is_not_counted() -> None:
    # Locust patches the process that imports it.
    subprocess.run([sys.executable, "-c", LEADER + EARLIER_RUN], check=True, timeout=60)


NO_DIRECTORY = """
module.make_plan = lambda *_: None
leader._check_shares = lambda *_: None
leader.earlier = SimpleNamespace(merge=merged.append)
leader.run = SimpleNamespace(ledger=SimpleNamespace(tally="of the last"))
def refuse(*_):
    raise OSError("no directory")
leader._run = refuse
for _ in range(2):
    leader._ready = SimpleNamespace(options=SimpleNamespace(drain_s=1.0))
    try:
        leader.start()
    except OSError:
        continue
    raise AssertionError
assert merged == []
"""


def test_the_requests_of_the_last_swarm_count_once_where_the_next_cannot_start() -> None:
    subprocess.run([sys.executable, "-c", LEADER + NO_DIRECTORY], check=True, timeout=60)


CLOCK_SET_BACK = """
import time
from types import SimpleNamespace
from loadgen.swarm.leading.swarm_run import SwarmRun
options = SimpleNamespace(max_lag_ms=50.0, warmup_s=None, max_silence_s=60.0)
run = SwarmRun(
    environment=None, preparation=SimpleNamespace(options=options), supervisor=None, stage=None,
    plan=SimpleNamespace(start_unix_s=time.time() - 10.0, batched=False), workers=None,
    folder=None, listener=None, say=print,
)
unix_s = time.time
time.time = lambda: unix_s() - 3600.0
assert 10.0 <= run.now_s < 60.0, run.now_s
"""


def test_a_clock_that_is_set_during_a_run_does_not_move_it() -> None:
    subprocess.run([sys.executable, "-c", CLOCK_SET_BACK], check=True, timeout=60)


def test_a_pause_of_the_master_is_not_a_silence_of_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swarm, at_s, naps = Swarm(), [0.0], [0]

    def nap(seconds: float) -> None:
        at_s[0] += 500.0  # stopped by Ctrl-Z, and then continued
        naps[0] += 1
        if naps[0] == 3:
            for name in "abcd":
                swarm.workers.drained(name)

    monkeypatch.setattr(gevent, "sleep", nap)
    monkeypatch.setattr(worker_registry, "time", SimpleNamespace(monotonic=lambda: at_s[0]))
    swarm.workers.drain(1.0)
    assert (naps[0], swarm.workers.lost, swarm.said) == (3, 0, [])
