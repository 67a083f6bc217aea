"""Results in slices, with pauses between them."""

import pytest

from loadgen.swarm import slices
from loadgen.swarm.slices import MOST_PAUSES, SLICE, in_slices


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(slices, "_sleep", taken.append)
    return taken


@pytest.mark.parametrize("count", [0, 1, SLICE, SLICE + 1, 10 * SLICE, 5_003])
def test_every_item_comes_once_in_order(count: int, pauses: list[float]) -> None:
    parts = list(in_slices(list(range(count))))
    assert [item for part in parts for item in part] == list(range(count))
    assert all(parts)
    assert len(pauses) == max(0, len(parts) - 1) <= MOST_PAUSES + 1


def test_a_pause_stands_between_two_slices_only(pauses: list[float]) -> None:
    slicing = in_slices(list(range(2 * SLICE)))
    next(slicing)
    assert not pauses
    next(slicing)
    assert len(pauses) == 1
    assert next(slicing, None) is None
    assert len(pauses) == 1
