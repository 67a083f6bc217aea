import gc

import pytest

from loadgen.swarm.process import calm_collector


def test_collections_are_short_and_rare_inside_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with calm_collector():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_an_error_inside_changes_nothing_afterwards() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), calm_collector():
        raise RuntimeError
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_cycles_made_inside_are_collected_inside() -> None:
    with calm_collector():
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
