"""Labels by centroids, against the plainest arithmetic there is."""

import numpy as np
import pytest

from kv_reading import KvError
from kv_reading.labelling import Centroids

DOCUMENTS = ("a", "b", "c")


def rows_of(seed: int) -> tuple[np.ndarray, list[str]]:
    """Twelve requests; column 3 never varies."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(3.0, 7.0, (12, 6)).astype(np.float32)
    rows[:, 3] = 5.0
    return rows, [DOCUMENTS[at] for at in rng.permutation(np.arange(12) % 3)]


def plainly(
    rows: np.ndarray, doc_ids: list[str], row: np.ndarray, without: list[int]
) -> list[tuple[float, str]]:
    """Distance and document of each, nearest first."""
    found = []
    for doc_id in set(doc_ids):
        chosen = [at for at, of in enumerate(doc_ids) if of == doc_id and at not in without]
        if not chosen:
            continue
        total = 0.0
        for column in range(rows.shape[1]):
            values = [float(value) for value in rows[:, column]]
            mean = sum(values) / len(values)
            spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
            if spread < 1e-7:
                continue
            centre = sum((values[at] - mean) / spread for at in chosen) / len(chosen)
            total += ((float(row[column]) - mean) / spread - centre) ** 2
        found.append(((total / rows.shape[1]) ** 0.5, doc_id))
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("without", [[], [4], [4, 7, 2]])
def test_the_nearest_centroid_is_the_label(seed: int, without: list[int]) -> None:
    rows, doc_ids = rows_of(seed)
    row = np.random.default_rng(seed + 100).normal(3.0, 7.0, 6).astype(np.float32)
    found = Centroids(rows, doc_ids).ranked(row, without)
    expected = plainly(rows, doc_ids, row, without)
    assert [each.doc_id for each in found] == [doc_id for _, doc_id in expected]
    assert [each.distance for each in found] == pytest.approx([far for far, _ in expected], 1e-4)


def test_a_document_of_which_nothing_is_left_is_no_label() -> None:
    rows, _ = rows_of(0)
    doc_ids = ["a"] * 11 + ["b"]
    near = Centroids(rows, doc_ids).ranked(rows[11], [11])
    assert [each.doc_id for each in near] == ["a"]
    assert Centroids(rows, doc_ids).ranked(rows[11])[0].doc_id == "b"
    assert Centroids(rows, doc_ids).ranked(rows[11], range(12)) == []


def test_asking_changes_nothing() -> None:
    centroids = Centroids(*rows_of(1))
    row = rows_of(2)[0][0]
    before = centroids.ranked(row)
    centroids.ranked(row, [0, 1, 2])
    assert centroids.ranked(row) == before


def test_one_document_is_no_choice() -> None:
    rows, _ = rows_of(0)
    with pytest.raises(KvError, match="a label needs two or more"):
        Centroids(rows, ["a"] * 12)
