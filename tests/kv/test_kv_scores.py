"""Scores against scikit-learn's own and against hand-made groups."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from sklearn.neighbors import NearestCentroid

from kv_reading.features import PARTS, FeatureChoice, FeatureSet, by_pca, by_svd, matrix
from kv_reading.scores import KEPT_SHARE, METHODS, centroid_share, purity, score, score_groups


def blobs(spread: float) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = make_blobs(60, 5, centers=6, cluster_std=spread, random_state=3)
    return rows.astype(np.float32), labels


def test_scores_of_given_groups_are_the_means_of_scikit_learns() -> None:
    rng = np.random.default_rng(5)
    labels, clusters = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    clusters[:25] = labels[:25]
    found = score_groups(labels, clusters, seeds=3)
    ari, nmi = [], []
    for seed in range(3):
        kept = np.sort(np.random.default_rng(seed).permutation(50)[: round(KEPT_SHARE * 50)])
        ari.append(adjusted_rand_score(labels[kept], clusters[kept]))
        nmi.append(normalized_mutual_info_score(labels[kept], clusters[kept]))
    assert found.ari.mean == pytest.approx(np.mean(ari))
    assert found.nmi.mean == pytest.approx(np.mean(nmi))
    assert min(ari) <= found.ari.low <= found.ari.high <= max(ari)


@pytest.mark.parametrize("method", list(METHODS))
def test_clear_groups_are_found_and_mixed_labels_are_not(method: str) -> None:
    rows, labels = blobs(0.05)
    found = score(rows, labels, method, seeds=4)
    assert found.ari.mean > (0.99 if method != "DBSCAN" else 0.5)
    assert found.permuted.high < 0.2
    assert found.silhouette == pytest.approx(float(silhouette_score(rows, labels)))
    assert found.centroid == 1


def test_purity_by_hand() -> None:
    labels, clusters = np.array([0, 0, 0, 1, 1, 2]), np.array([7, 7, 8, 8, 8, 8])
    assert purity(labels, clusters) == pytest.approx((2 + 2) / 6)


def test_the_nearest_centroid_leaves_the_row_out() -> None:
    rows, labels = blobs(4.0)
    right = 0
    for at in range(len(rows)):
        rest = np.arange(len(rows)) != at
        right += int(
            NearestCentroid().fit(rows[rest], labels[rest]).predict(rows[[at]])[0] == labels[at]
        )
    assert 0.3 < right / len(rows) < 1
    assert centroid_share(rows, labels) == pytest.approx(right / len(rows))
    assert centroid_share(rows, np.arange(len(rows))) == 0


def test_dimensions_are_those_that_the_variance_needs() -> None:
    rows, _ = blobs(2.0)
    wide = rows @ np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
    expected = PCA(0.9, svd_solver="full").fit(wide).n_components_
    assert by_pca(wide).shape == (60, expected)
    assert by_svd(wide).shape[1] <= 5


def features(pooled: np.ndarray) -> FeatureSet:
    names = np.array([str(at) for at in range(len(pooled))])
    return FeatureSet("arm", "test", pooled.astype(np.float32), names, names, names, names)


def test_columns_are_standardised_and_chosen() -> None:
    pooled = np.random.default_rng(0).normal(3, 5, size=(9, 2, 2, 3, 2, 4))
    pooled[:, 0, 0, 0, 0, 0] = 7  # knows nothing
    every = matrix(features(pooled), FeatureChoice())
    assert every.shape == (9, 2 * 3 * 2 * 4)
    assert np.allclose(every.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(np.delete(every, 0, axis=1).std(axis=0), 1, atol=1e-4)
    assert not every[:, 0].any()
    some = matrix(features(pooled), FeatureChoice("last", PARTS[1:], (2,)))
    raw = pooled[:, 1, 1, 2].reshape(9, -1)
    assert np.allclose(some, (raw - raw.mean(0)) / raw.std(0), atol=1e-4)
    weighted = matrix(features(pooled), FeatureChoice(layer_weights=(0.0, 0.0, 2.0)))
    assert np.allclose(weighted[:, 16:24], 2 * every[:, 16:24])
    assert not weighted[:, :16].any()
