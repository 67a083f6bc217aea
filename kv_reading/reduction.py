"""Fewer dimensions, as many as a share of the variance needs."""

import numpy as np
from sklearn.decomposition import PCA, TruncatedSVD

from kv_reading.kv import Floats

EXPLAINED = 0.9
"""Share of the variance that is to be kept."""


def by_pca(rows: Floats) -> Floats:
    """The rows on their first principal components, [rows, dimensions]."""
    return _enough(PCA(svd_solver="full").fit(rows), rows)


def by_svd(rows: Floats) -> Floats:
    """The same without centring, as suits sparse counts of words."""
    most = min(rows.shape) - 1
    return _enough(TruncatedSVD(max(most, 1), random_state=0).fit(rows), rows)


def _enough(fitted: PCA | TruncatedSVD, rows: Floats) -> Floats:
    shares = np.cumsum(np.nan_to_num(fitted.explained_variance_ratio_))
    wanted = int(np.searchsorted(shares, EXPLAINED * shares[-1])) + 1
    reduced: Floats = fitted.transform(rows)[:, :wanted].astype(np.float32)
    return reduced
