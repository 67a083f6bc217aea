"""Whether the best candidate is what the query asks about, from 0 to 1.

A query near the domain that no document answers has a high cosine too; what gives it away are
single words that the document has nothing like. So several signs are weighed by a logistic model.
A document with expansions meets any query better, so one without them is given some credit.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from rag_store.embedders import Embedding
from rag_store.ranking import Ranking
from rag_store.snapshot import Snapshot
from rag_store.terms import STOPWORDS

FEATURES = ("cosine", "words", "weakest_words", "coverage", "no_expansions")
# A share of 95 % of the answerable queries is kept unless told otherwise.
KEEP = 0.95
_LEAST_FOR_WEIGHTS = 30
_RIDGE = 0.02

Features = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Threshold:
    """The model that scores a label, and the score below which a query is refused.

    `weights` are for FEATURES, none of them negative. `fitted_on` counts the answerable and the
    unanswerable queries; (0, 0) is what is shipped.
    """

    threshold: float
    weights: tuple[float, ...]
    intercept: float
    fitted_on: tuple[int, int] = (0, 0)

    def score(self, features: Features) -> float:
        """From 0 to 1."""
        return float(_sigmoid(features @ np.array(self.weights) + self.intercept))

    def as_json(self) -> str:
        """One line of JSON, as kept beside the collection."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Threshold":
        """What `as_json` gave."""
        kept = json.loads(text)
        answerable, unanswerable = kept["fitted_on"]
        return cls(
            kept["threshold"],
            tuple(kept["weights"]),
            kept["intercept"],
            (answerable, unanswerable),
        )


def features(
    snapshot: Snapshot, ranking: Ranking, query: Embedding, terms: Sequence[str]
) -> Features:
    """The signs for the best candidate, in the order of FEATURES; there must be one."""
    document = int(ranking.documents[0])
    entry = snapshot.entries[document]
    return np.array(
        [
            ranking.cosines[0],
            ranking.late[0],
            _weakest(ranking, query.words),
            coverage(snapshot, document, terms),
            float(entry.chunk_count == len(entry.rows)),
        ]
    )


def _weakest(ranking: Ranking, words: Sequence[str]) -> float:
    """The mean cosine of the third of the telling words that the document has least of."""
    if ranking.words.shape[1] == 0:
        return 0.0
    telling = [word.isalnum() and word not in STOPWORDS for word in words]
    similar = np.sort(ranking.words[0][telling] if any(telling) else ranking.words[0])
    return float(similar[: max(1, len(similar) // 3)].mean())


def coverage(snapshot: Snapshot, document: int, words: Sequence[str]) -> float:
    """The share of the words that the document holds, each weighed by its rarity; 0 to 1."""
    low, high = snapshot.first_rows[document : document + 2]
    held = total = 0.0
    for word in dict.fromkeys(words):
        rows, _ = snapshot.chunks.postings(word)
        rarity = snapshot.chunks.rarity(word)
        total += rarity
        held += rarity * bool(np.any((rows >= low) & (rows < high)))
    return held / total if total else 0.0


def fit(
    answerable: Sequence[Features],
    unanswerable: Sequence[Features],
    start: Threshold,
    keep: float = KEEP,
) -> Threshold:
    """A threshold that keeps the share `keep` of the answerable queries.

    The weights are fitted also where there are at least 30 queries of both kinds; with fewer,
    those of `start` are taken. There must be an answerable one.
    """
    model = start
    if min(len(answerable), len(unanswerable)) >= _LEAST_FOR_WEIGHTS:
        model = _fit_weights(np.array(answerable), np.array(unanswerable))
    scores = np.sort([model.score(each) for each in answerable])
    lost = lost_at_most(keep, len(scores))
    counts = len(answerable), len(unanswerable)
    return Threshold(float(scores[lost]), model.weights, model.intercept, counts)


def lost_at_most(keep: float, count: int) -> int:
    """How many of `count` queries, of which there is one, may be refused to keep the share."""
    # 1 - 0.9 is less than a tenth by a rounding error.
    return min(int((1 - keep) * count + 1e-9), count - 1)


def _fit_weights(answerable: Features, unanswerable: Features) -> Threshold:
    """Logistic regression, both kinds counting the same, by projected gradient descent."""
    rows = np.concatenate([answerable, unanswerable])
    truth = np.repeat([1.0, 0.0], [len(answerable), len(unanswerable)])
    share = np.where(truth == 1, 0.5 / len(answerable), 0.5 / len(unanswerable))
    middle, spread = rows.mean(axis=0), rows.std(axis=0)
    spread[spread < 1e-9] = 1.0
    scaled = (rows - middle) / spread
    weights, intercept = np.zeros(rows.shape[1]), 0.0
    for _ in range(3000):
        error = (_sigmoid(scaled @ weights + intercept) - truth) * share
        # A sign that speaks for a document must never count against it.
        weights = np.maximum(weights - (scaled.T @ error + _RIDGE * weights), 0.0)
        intercept -= float(error.sum())
    plain = weights / spread
    return Threshold(0.5, tuple(map(float, plain)), intercept - float(plain @ middle))


def _sigmoid(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(values, -50, 50)))
    return result


# Fitted on the development splits of tests/rag/data, which have no expansions, and the last weight
# on that of the demo corpus, which has: 95 % of the questions of either score above the threshold.
_MINILM = Threshold(0.257, (2.84, 4.37, 3.58, 0.70, 1.0), -5.28)
_SHIPPED = {"minilm": _MINILM}
# By the weights that it makes: the demo corpus's adapter. It draws every question to a document,
# also one that none answers, so its cosines of whole texts tell nothing; of its own development
# split the same share scores above the threshold.
_SHIPPED_ADAPTERS = {
    "ed1db05618fe66595fbcf316cb550aeeb9c30acf800a6a3a9b5c51683276b9ac": Threshold(
        0.468, (0.0, 4.0, 0.0, 4.0, 1.0), -5.28
    )
}
# Cosines of another embedder lie elsewhere: it refuses nothing before it is fitted.
UNFITTED = replace(_MINILM, threshold=0.0)


def shipped(embedder: str, weights: str) -> Threshold:
    """The threshold that comes along for an embedder with these weights, or UNFITTED."""
    return _SHIPPED_ADAPTERS.get(weights) or _SHIPPED.get(embedder, UNFITTED)
