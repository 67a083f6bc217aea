import time

import pytest

from loadgen.stats.clock import RunClock


def test_readings_become_seconds_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_010.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 50.0)
    clock = RunClock(1_700_000_000.0)
    assert clock.now_s() == 10.0
    assert clock.to_run_s(51.5) == 11.5
    assert clock.to_run_s(39.0) == -1.0
    assert clock.to_perf(11.5) == 51.5


def test_processes_started_apart_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {}
    for name, perf_s in (("master", 7.0), ("worker", 90_000.0)):
        monkeypatch.setattr(time, "time", lambda: 1_700_000_003.0)
        monkeypatch.setattr(time, "perf_counter", lambda perf_s=perf_s: perf_s)
        readings[name] = RunClock(1_700_000_000.0).to_run_s(perf_s + 2)
    assert readings == {"master": 5.0, "worker": 5.0}


def test_a_process_that_is_set_aside_between_two_readings_has_the_right_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_s, readings = [100.0], [0]

    def wall_clock() -> float:
        now_s = 1_700_000_000.0 + at_s[0]
        at_s[0] += 0.4 if not readings[0] else 0.0
        readings[0] += 1
        return now_s

    monkeypatch.setattr(time, "time", wall_clock)
    monkeypatch.setattr(time, "perf_counter", lambda: at_s[0])
    clock = RunClock(1_700_000_000.0)
    assert clock.to_run_s(107.0) == pytest.approx(107.0, abs=1e-6)


def test_a_wall_clock_set_during_the_run_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RunClock(time.time())
    monkeypatch.setattr(time, "time", lambda: 0.0)
    earlier = clock.now_s()
    assert 0 <= earlier <= clock.now_s()
