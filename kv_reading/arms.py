"""All arms of the design, scored alike: what KV knows, beside what words and retrieval know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from kv_reading.clustering import METHODS
from kv_reading.errors import KvError
from kv_reading.features import PARTS, POOLS, Choice, FeatureSet, matrix
from kv_reading.reduction import by_pca, by_svd
from kv_reading.run import LibraryDocument
from kv_reading.scores import Score, score, score_groups
from kv_reading.texts import encoder_rows, retrieved_labels, tfidf_rows

MAIN, SHORT = "alone/question", "short-alone/question"
WHOLE, OWN, OTHER = "own/prompt", "own/question", "other/question"
SWAPPED, SHORT_OWN = "swapped/question", "short-own/question"
WORDS, ENCODER, RAG = "TF-IDF", "sentence encoder", "RAG label"
TOPIC, CONTEXT = "topic", "context"


@dataclass(frozen=True, slots=True)
class Row:
    """An arm's score. `key` is `ARM` or `WORDS:ARM`; `against` says whether the true label is the
    document of the question or that of the context; `right` is the share of right labels, by the
    nearest centroid or by retrieval."""

    key: str
    source: str
    against: str
    score: Score
    right: float | None


@dataclass(frozen=True, slots=True)
class Variant:
    """The main arm by another clustering, choice of columns or reduction."""

    method: str
    choice: Choice
    reduction: str
    score: Score


@dataclass(frozen=True, slots=True)
class LayerScore:
    """One layer's keys or values in an arm."""

    arm: str
    part: str
    layer: int
    score: Score


def arm_rows(
    features: Mapping[str, FeatureSet], library: Sequence[LibraryDocument], seeds: int
) -> list[Row]:
    """Every arm there is, in the order of the design. Raises KvError without the main arm."""
    if MAIN not in features:
        raise KvError(f"the features have no arm {MAIN}: make them by `kvswarm kv extract`")
    with threadpool_limits(1):
        rows: list[Row] = []
        for arm in (WHOLE, OWN, OTHER, MAIN):
            rows += _kv_rows(features, arm, TOPIC, seeds)
        for against in (TOPIC, CONTEXT):
            rows += _kv_rows(features, SWAPPED, against, seeds)
        less = [(each.doc_id, each.title, each.text) for each in library]
        rows += _text_rows(features[MAIN], less, seeds)
        for arm in (SHORT_OWN, SHORT):
            rows += _kv_rows(features, arm, TOPIC, seeds)
        if SHORT in features:
            whole = [(each.doc_id, each.title, each.whole) for each in library]
            rows += _text_rows(features[SHORT], whole, seeds)
    return rows


def variants(features: FeatureSet, seeds: int) -> list[Variant]:
    """Each clustering on keys and values; k-means on each choice of columns, and with a layer's
    columns weighted by 1 over its number from 1."""
    early = tuple(1 / (1 + layer) for layer in range(features.layers))
    choices: list[tuple[str, Choice, str]] = [(method, Choice(), "PCA") for method in METHODS]
    choices += [("k-means", Choice(pool, (part,)), "PCA") for pool in POOLS for part in PARTS]
    choices += [("k-means", Choice("last"), "PCA"), ("k-means", Choice(), "SVD")]
    choices.append(("k-means", Choice(layer_weights=early), "PCA"))
    found = []
    with threadpool_limits(1):
        for method, choice, reduction in choices:
            rows = matrix(features, choice)
            rows = by_svd(rows) if reduction == "SVD" else by_pca(rows)
            scored = score(rows, features.topics, method, seeds)
            found.append(Variant(method, choice, reduction, scored))
    return found


def layer_scores(features: Sequence[FeatureSet], seeds: int) -> list[LayerScore]:
    """Keys and values of each layer alone, in each of these arms."""
    found = []
    with threadpool_limits(1):
        for each in features:
            for part in PARTS:
                for layer in range(each.layers):
                    rows = by_pca(matrix(each, Choice(parts=(part,), layers=(layer,))))
                    scored = score(rows, each.topics, "k-means", seeds)
                    found.append(LayerScore(each.arm, part, layer, scored))
    return found


def _kv_rows(features: Mapping[str, FeatureSet], arm: str, against: str, seeds: int) -> list[Row]:
    if arm not in features:
        return []
    each = features[arm]
    labels = each.contexts if against == CONTEXT else each.topics
    scored = score(by_pca(matrix(each, Choice())), labels, "k-means", seeds)
    return [Row(arm, each.source, against, scored, scored.centroid)]


def _text_rows(
    features: FeatureSet, documents: Sequence[tuple[str, str, str]], seeds: int
) -> list[Row]:
    texts, labels = [str(text) for text in features.texts], features.topics
    rows = []
    for name, found in ((WORDS, tfidf_rows(texts)), (ENCODER, encoder_rows(texts))):
        reduced = by_svd(found) if name == WORDS else by_pca(found)
        scored = score(reduced, labels, "k-means", seeds)
        rows.append(Row(f"{name}:{features.arm}", name, TOPIC, scored, scored.centroid))
    retrieved, clusters = retrieved_labels(texts, documents)
    right = sum(one == other for one, other in zip(retrieved, labels, strict=True)) / len(texts)
    scored = score_groups(labels, clusters, seeds)
    rows.append(Row(f"{RAG}:{features.arm}", RAG, TOPIC, scored, right))
    return rows
