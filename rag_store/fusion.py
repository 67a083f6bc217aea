"""Several scores of one query for the same documents, made one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
# Cormack, Clarke and Buettcher, SIGIR 2009.
_RRF_K = 60


def fuse(method: str, scores: Sequence[Scores], weights: Sequence[float]) -> Scores:
    """The weighted sum of the scores, each of shape [documents], after making them comparable.

    `zscore`: in standard deviations from their mean; `minmax`: from 0 to 1; `rrf`: the
    reciprocal of 60 + rank.
    """
    total = np.zeros(len(scores[0]), np.float32)
    for values, weight in zip(scores, weights, strict=True):
        if len(values):
            total += np.float32(weight) * _comparable(method, values)
    return total


def _comparable(method: str, values: Scores) -> Scores:
    if method == "rrf":
        return _reciprocal_ranks(values)
    if method == "zscore":
        middle, spread = values.mean(), values.std()
    else:
        middle, spread = values.min(), np.ptp(values)
    return (values - middle) / spread if spread > 1e-9 else np.zeros_like(values)


def _reciprocal_ranks(values: Scores) -> Scores:
    ranks = np.empty(len(values), np.float32)
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    # A document that shares nothing with the query has no rank in that list.
    return np.where(values > 0, 1 / (_RRF_K + ranks), 0).astype(np.float32)
