"""The percentiles of a reply's gaps."""

import numpy as np
import pytest

from loadgen.swarm.recording import percentiles


@pytest.mark.parametrize("count", [1, 2, 3, 20, 101, 1000])
def test_percentiles_interpolate_as_numpy_does(count: int) -> None:
    ordered = sorted(((7 * n) % 101) / 3 for n in range(count))
    assert percentiles(ordered) == pytest.approx(np.percentile(ordered, (50, 95, 99)))


def test_without_gaps_there_are_none() -> None:
    assert percentiles([]) == [None, None, None]
