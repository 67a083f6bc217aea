"""How well groups are the documents, with intervals over seeds and a control of mixed labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.cluster import DBSCAN, HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    silhouette_score,
)
from sklearn.metrics.cluster import contingency_matrix
from sklearn.neighbors import NearestNeighbors

from kv_reading.kv import Floats

Clusters = npt.NDArray[np.int64]
SMALLEST = 2
"""Rows of a dense group."""
Labels = npt.NDArray[np.generic]
SEEDS, KEPT_SHARE = 20, 0.8
"""Each seed leaves out a fifth of the requests and starts the clustering anew."""


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


@dataclass(frozen=True, slots=True)
class SeedEstimate:
    """The mean over seeds, and between what 95 % of them lie."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Score:
    """ARI, NMI and purity of groups against true labels, `permuted` the ARI against the same
    labels in a random order. `silhouette` is of the true labels, `centroid` the share of requests
    whose own label has the nearest centroid of the other requests; both None where there are no
    vectors. `dimensions` is how many the vectors have."""

    requests: int
    labels: int
    dimensions: int | None
    ari: SeedEstimate
    nmi: SeedEstimate
    purity: SeedEstimate
    permuted: SeedEstimate
    silhouette: float | None
    centroid: float | None


def purity(labels: Labels, clusters: Clusters) -> float:
    """Share of requests that have the commonest label of their group (Manning and others 2008,
    Introduction to Information Retrieval, 16.3)."""
    table = contingency_matrix(labels, clusters)
    return float(table.max(axis=0).sum() / table.sum())


def centroid_share(rows: Floats, labels: Labels) -> float:
    """Share of rows nearest to the centroid of their own label, which leaves the row out. A label
    of one row cannot be found."""
    names, at = np.unique(labels, return_inverse=True)
    counts = np.bincount(at)
    sums = np.zeros((len(names), rows.shape[1]))
    np.add.at(sums, at, rows)
    right = 0
    for row, own in zip(rows, at, strict=True):
        if counts[own] < 2:
            continue
        centroids = sums / counts[:, None]
        centroids[own] = (sums[own] - row) / (counts[own] - 1)
        right += int(np.argmin(np.linalg.norm(centroids - row, axis=1)) == own)
    return right / len(rows)


def score(rows: Floats, labels: Labels, method: str = "k-means", seeds: int = SEEDS) -> Score:
    """Of groups found in the rows by a method of METHODS."""

    def grouped(kept: npt.NDArray[np.int64], seed: int) -> Clusters:
        return METHODS[method](rows[kept], len(np.unique(labels[kept])), seed)

    return Score(
        **_estimates(labels, grouped, seeds),
        requests=len(rows),
        labels=len(np.unique(labels)),
        dimensions=rows.shape[1],
        silhouette=_silhouette(rows, labels),
        centroid=centroid_share(rows, labels),
    )


def score_groups(labels: Labels, clusters: Clusters, seeds: int = SEEDS) -> Score:
    """Of groups that are given, as those of a retrieved label."""
    return Score(
        **_estimates(labels, lambda kept, seed: clusters[kept], seeds),
        requests=len(labels),
        labels=len(np.unique(labels)),
        dimensions=None,
        silhouette=None,
        centroid=None,
    )


def _estimates(
    labels: Labels,
    grouped: Callable[[npt.NDArray[np.int64], int], Clusters],
    seeds: int,
) -> dict[str, SeedEstimate]:
    found: dict[str, list[float]] = {"ari": [], "nmi": [], "purity": [], "permuted": []}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        kept = np.sort(rng.permutation(len(labels))[: max(2, round(KEPT_SHARE * len(labels)))])
        clusters, true = grouped(kept, seed), labels[kept]
        found["ari"].append(adjusted_rand_score(true, clusters))
        found["nmi"].append(normalized_mutual_info_score(true, clusters))
        found["purity"].append(purity(true, clusters))
        found["permuted"].append(adjusted_rand_score(rng.permutation(true), clusters))
    return {name: _estimate(values) for name, values in found.items()}


def _estimate(values: Sequence[float]) -> SeedEstimate:
    low, high = np.quantile(values, (0.025, 0.975))
    return SeedEstimate(float(np.mean(values)), float(low), float(high))


def _silhouette(rows: Floats, labels: Labels) -> float | None:
    groups = len(np.unique(labels))
    return float(silhouette_score(rows, labels)) if 1 < groups < len(labels) else None
