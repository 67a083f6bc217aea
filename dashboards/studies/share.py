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


@dataclass(frozen=True, slots=True)
class Paired:
    """Questions that were asked of both sides: how many were right more often on the one, and on
    the other. `p` is of the sign test over those (McNemar's, exact)."""

    questions: int
    first: int
    second: int
    p: float


def paired(first: Cells, second: Cells) -> Paired | None:
    """The same questions against each other; None where no question was asked of both."""
    one, other = (_by_question(cells) for cells in (first, second))
    both = one.keys() & other.keys()
    if not both:
        return None
    more, less = (sum(a[each] > b[each] for each in both) for a, b in ((one, other), (other, one)))
    p = float(binomtest(more, more + less).pvalue) if more + less else 1.0
    return Paired(len(both), more, less, p)


def _by_question(cells: Cells) -> dict[str, float]:
    """The share of right labels of each question, over all runs."""
    right: dict[str, list[bool]] = {}
    for cell in cells:
        found = labels_of(cell.run)
        for question, is_right in zip(found.question, found.right.tolist(), strict=True):
            right.setdefault(question, []).append(is_right)
    return {question: sum(each) / len(each) for question, each in right.items()}


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
