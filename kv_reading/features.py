"""What is kept of a request's KV: pooled over tokens, for every layer and head, and reduced."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA, TruncatedSVD

from kv_reading import KvError
from kv_reading.kv import Floats, Kv

POOLS, PARTS = ("mean", "last"), ("keys", "values")
Texts = npt.NDArray[np.str_]
EXPLAINED = 0.9
"""Share of the variance that is to be kept."""


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The requests of one arm. `pooled` is [requests, pools, parts, layers, heads, head_dim], with
    POOLS and PARTS; `topics` and `contexts` are document ids, `texts` the questions."""

    arm: str
    source: str
    pooled: Floats
    question_ids: Texts
    topics: Texts
    contexts: Texts
    texts: Texts

    @property
    def layers(self) -> int:
        """Of the model."""
        return int(self.pooled.shape[3])


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """Which of it becomes columns. `layers` of None are all; `layer_weights` are one for each of
    these."""

    pool: str = "mean"
    parts: tuple[str, ...] = PARTS
    layers: tuple[int, ...] | None = None
    layer_weights: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean and standard deviation of columns over the rows that gave them."""

    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, rows: Floats) -> "Scale":
        """Of `rows`, [requests, ...]."""
        return cls(rows.mean(axis=0), rows.std(axis=0))

    def standardised(self, rows: Floats) -> Floats:
        """These or other rows by this scale; 0 in a column that was constant."""
        centred = rows - self.mean
        columns: Floats = np.zeros_like(centred)
        np.divide(centred, self.spread, out=columns, where=self.spread > 1e-7)
        return columns


def pooled(kv: Kv) -> Floats:
    """The mean over all tokens and the last token: [pools, parts, layers, heads, head_dim]."""
    both = np.stack((kv.keys, kv.values))
    return np.stack((both.mean(axis=3), both[:, :, :, -1])).astype(np.float32)


def matrix(features: FeatureSet, choice: FeatureChoice) -> Floats:
    """Rows of requests, each column with mean 0 and variance 1 (0 where it is constant), then
    weighted by its layer."""
    kept = features.pooled[:, POOLS.index(choice.pool)]
    kept = kept[:, [PARTS.index(part) for part in choice.parts]]
    if choice.layers is not None:
        kept = kept[:, :, list(choice.layers)]
    columns = Scale.of(kept).standardised(kept)
    if choice.layer_weights is not None:
        columns *= np.asarray(choice.layer_weights, np.float32)[:, None, None]
    rows: Floats = columns.reshape(len(columns), -1)
    return rows


def write_features(path: Path, sets: Sequence[FeatureSet]) -> None:
    """One .npz of all arms; an array is called `ARM:FIELD`."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for each in sets:
        for field in ("pooled", "question_ids", "topics", "contexts", "texts"):
            arrays[f"{each.arm}:{field}"] = getattr(each, field)
        arrays[f"{each.arm}:source"] = np.array(each.source)
    partial = path.with_name(f".{path.name}.partial.npz")
    np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def read_features(path: Path) -> dict[str, FeatureSet]:
    """By arm. Raises KvError for a file that is not there or not one of these."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arms = [name.removesuffix(":pooled") for name in file if name.endswith(":pooled")]
            return {arm: _feature_set(arm, file) for arm in arms}
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise KvError(f"cannot read {path} ({error}): make it by `kvswarm kv extract`") from error


def _feature_set(arm: str, file: "np.lib.npyio.NpzFile") -> FeatureSet:
    fields = ("pooled", "question_ids", "topics", "contexts", "texts")
    return FeatureSet(arm, str(file[f"{arm}:source"]), *(file[f"{arm}:{name}"] for name in fields))


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
