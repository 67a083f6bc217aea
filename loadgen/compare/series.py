"""What a run recorded of one metric, in the order of time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Values:
    """A value per request, in the order of sending; its mean or a percentile is wanted."""

    value: Floats

    @property
    def samples(self) -> int:
        """Usable samples."""
        return len(self.value)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two sums over the same rows, in the order of time: `sum(part) / sum(whole)` is wanted.

    A rate has what was done and the seconds it took; a share a part and its whole. `counts` says
    that both count alike things, so that the share is a proportion.
    """

    part: Floats
    whole: Floats
    samples: int
    counts: bool = False


Series = Values | Ratio

NO_RATIO = Ratio(np.zeros(0), np.zeros(0), 0)
