"""Ways to put rows into groups; -1 is a row that belongs to none."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from sklearn.cluster import DBSCAN, HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.neighbors import NearestNeighbors

from kv_reading.kv import Floats

Clusters = npt.NDArray[np.int64]
SMALLEST = 2
"""Rows of a dense group."""


def kmeans(rows: Floats, groups: int, seed: int) -> Clusters:
    """The best of five starts; told how many groups there are."""
    return _clusters(KMeans(groups, n_init=5, random_state=seed).fit_predict(rows))


def agglomerative(rows: Floats, groups: int, seed: int) -> Clusters:
    """Ward's linkage; told how many groups there are."""
    return _clusters(AgglomerativeClustering(groups).fit_predict(rows))


def hdbscan(rows: Floats, groups: int, seed: int) -> Clusters:
    """Not told how many groups there are."""
    return _clusters(HDBSCAN(min_cluster_size=SMALLEST, copy=True).fit_predict(rows))


def dbscan(rows: Floats, groups: int, seed: int) -> Clusters:
    """With a radius that reaches a neighbour of nine rows in ten; not told how many groups there
    are."""
    nearest, _ = NearestNeighbors(n_neighbors=2).fit(rows).kneighbors(rows)
    radius = max(float(np.quantile(nearest[:, 1], 0.9)), 1e-6)
    return _clusters(DBSCAN(eps=radius, min_samples=SMALLEST).fit_predict(rows))


METHODS: dict[str, Callable[[Floats, int, int], Clusters]] = {
    "k-means": kmeans,
    "agglomerative": agglomerative,
    "HDBSCAN": hdbscan,
    "DBSCAN": dbscan,
}
"""Each gets rows, the number of true groups and a seed."""


def _clusters(found: npt.NDArray[np.generic]) -> Clusters:
    return found.astype(np.int64)
