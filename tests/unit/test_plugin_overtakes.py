"""Overtakes are counted exactly, and in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.overtakes import Overtakes


@given(st.permutations(range(30)), st.integers(0, 29))
def test_counts_the_younger_ones_admitted_before(admissions: list[int], asked: int) -> None:
    overtakes = Overtakes()
    waiting = set(admissions)
    for seq in admissions[: admissions.index(asked)]:
        waiting.remove(seq)
        overtakes.admitted(seq)
        overtakes.forget_before(min(waiting))
    expected = sum(seq > asked for seq in admissions[: admissions.index(asked)])
    assert overtakes.of(asked) == expected


def test_nobody_waiting_forgets_all() -> None:
    overtakes = Overtakes()
    overtakes.admitted(7)
    overtakes.forget_before(None)
    assert overtakes.of(0) == 0


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.integers(0, 1000))
def test_is_exact_up_to_the_limit_and_never_below_it(places: list[int], asked: int) -> None:
    overtakes = Overtakes(limit=5)
    for seq in places:
        overtakes.admitted(seq)
    expected = sum(seq > asked for seq in places)
    counted = overtakes.of(asked)
    assert min(expected, 5) <= counted <= expected
    assert overtakes.of(-1) <= 10
