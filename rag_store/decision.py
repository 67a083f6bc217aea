"""Whether the best candidate is what the query asks about: its score has to reach a threshold.

A query that says nothing, without a letter or of one stop word, is refused whatever it scores.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rag_store.terms import STOPWORDS, pieces

KEEP = 0.95
"""The share of answerable queries that is kept unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The score below which a query is refused.

    `fitted_on` counts the answerable and the unanswerable queries; (0, 0) is what is shipped.
    """

    threshold: float
    fitted_on: tuple[int, int] = (0, 0)

    def as_json(self) -> str:
        """One line of JSON, as kept beside the collection."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Threshold":
        """What `as_json` gave. Raises ValueError, TypeError or KeyError for anything else."""
        kept = json.loads(text)
        answerable, unanswerable = kept["fitted_on"]
        return cls(float(kept["threshold"]), (int(answerable), int(unanswerable)))


# Keeps 95 % of half of the questions of nine collections on average, without the demo corpus's.
# Scores of another embedder lie elsewhere.
_SHIPPED = {"minilm": Threshold(0.35)}


def says_something(query: str) -> bool:
    """Whether there is a letter in the query, and more than one stop word."""
    words = {piece for piece in pieces(query) if piece[0].isalnum()}
    only = next(iter(words)) if len(words) == 1 else ""
    return any(map(str.isalpha, query)) and only not in STOPWORDS


def fit(answerable: Sequence[float], unanswerable: int, keep: float = KEEP) -> Threshold:
    """The highest threshold that keeps the share `keep` of the answerable queries' scores.

    There must be one.
    """
    scores = np.sort(answerable)
    counts = len(answerable), unanswerable
    return Threshold(float(scores[lost_at_most(keep, len(scores))]), counts)


def lost_at_most(keep: float, count: int) -> int:
    """How many of `count` queries, of which there is one, may be refused to keep the share."""
    # 1 - 0.9 is less than a tenth by a rounding error.
    return min(int((1 - keep) * count + 1e-9), count - 1)


def shipped(embedder: str) -> Threshold:
    """The threshold that comes along for an embedder, or one that refuses no score."""
    return _SHIPPED.get(embedder, Threshold(0.0))
