"""A share of requests with its interval."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from dashboards.studies.cell import Cells
from dashboards.studies.requests import labels_of
from dashboards.studies.wording import percent

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Share:
    """A share, 0 to 1, with Wilson's interval (1927)."""

    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """`83 % (75 % to 90 %)`."""
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)})"


def share_right(cells: Cells) -> Share | None:
    """The share of right labels over the requests of all cells; None without any. The interval is
    for as many samples as there are different questions: one that returns is answered alike."""
    found = [labels_of(cell.run) for cell in cells]
    right = np.concatenate([each.right for each in found]) if found else np.zeros(0)
    if not len(right):
        return None
    share = float(right.mean())
    questions = len({question for each in found for question in each.question})
    interval = binomtest(round(share * questions), questions).proportion_ci(LEVEL, "wilson")
    return Share(share, min(share, float(interval.low)), max(share, float(interval.high)))
