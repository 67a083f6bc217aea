"""Clocks of worker and master, with the time that questions and answers take."""

import random

import pytest

from loadgen.swarm.leading.clock_offset import ClockAsker, ClockOffset


class Network:
    """A worker's clock, a master's that is ahead of it, and messages that take their time."""

    def __init__(self, master_ahead_s: float) -> None:
        self.now_s, self.master_ahead_s = 1_700_000_000.0, master_ahead_s
        self.asker = ClockAsker(lambda question: None, lambda: self.now_s)

    def ask(self, there_s: float, back_s: float) -> None:
        question = {"asked_unix_s": self.now_s}
        self.now_s += there_s
        answer = {**question, "master_unix_s": self.now_s + self.master_ahead_s}
        self.now_s += back_s
        self.asker.take(answer)

    @property
    def offset(self) -> ClockOffset:
        offset = self.asker.offset
        assert offset is not None
        return offset


@pytest.mark.parametrize("ahead_s", [-30.0, -0.02, 0.5])
def test_clocks_that_differ_are_found_within_the_error_that_is_told(ahead_s: float) -> None:
    network = Network(ahead_s)
    network.ask(0.001, 0.004)
    assert network.offset.is_certain
    assert network.offset.error_s == pytest.approx(0.0025, abs=1e-5)
    assert abs(network.offset.master_ahead_s - ahead_s) <= network.offset.error_s + 1e-6


def test_processes_of_one_host_never_differ_however_unevenly_messages_wait() -> None:
    random.seed(5)
    for _ in range(200):
        network = Network(0.0)
        network.ask(random.random() / 10, random.random() / 1000)
        assert not network.offset.is_certain


def test_the_quickest_of_the_last_answers_counts() -> None:
    network = Network(2.0)
    network.ask(0.2, 0.0)
    network.ask(0.001, 0.001)
    network.ask(0.3, 0.0)
    assert network.offset.error_s == pytest.approx(0.001, abs=1e-5)
    for _ in range(8):
        network.ask(0.05, 0.05)
    assert network.offset.error_s == pytest.approx(0.05, abs=1e-5), "a clock may be set meanwhile"


def test_nothing_is_known_before_the_first_answer() -> None:
    assert Network(1.0).asker.offset is None


def test_answers_of_before_a_clock_was_set_count_no_more() -> None:
    network = Network(0.0)
    network.ask(0.0001, 0.0001)
    network.master_ahead_s = 2.0
    network.ask(0.01, 0.01)
    assert network.offset.master_ahead_s == pytest.approx(2.0, abs=0.02)


def test_an_answer_that_came_before_its_question_says_nothing() -> None:
    network = Network(2.0)
    network.ask(0.001, 0.001)
    network.ask(0.001, -3600.0)
    assert network.offset.error_s == pytest.approx(0.001, abs=1e-5)
    assert network.offset.master_ahead_s == pytest.approx(2.0, abs=0.01)
