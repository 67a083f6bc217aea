"""All arms of the design, scored alike: what KV knows, beside what words and retrieval know."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from threadpoolctl import threadpool_limits

from kv_reading import KvError
from kv_reading.features import PARTS, POOLS, FeatureChoice, FeatureSet, by_pca, by_svd, matrix
from kv_reading.kv import Floats
from kv_reading.recording import LibraryDocument
from kv_reading.scores import METHODS, Clusters, Score, score, score_groups

REFUSED = -1
MAIN, SHORT = "alone/question", "short-alone/question"
WHOLE, OWN, OTHER = "own/prompt", "own/question", "other/question"
SWAPPED, SHORT_OWN = "swapped/question", "short-own/question"
WORDS, ENCODER, RAG = "TF-IDF", "sentence encoder", "RAG label"
TOPIC, CONTEXT = "topic", "context"


def tfidf_rows(texts: Sequence[str]) -> Floats:
    """Words by TF-IDF, [texts, words]."""
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    rows: Floats = vectorizer.fit_transform(texts).toarray().astype(np.float32)
    return rows


def encoder_rows(texts: Sequence[str]) -> Floats:
    """By all-MiniLM-L6-v2, [texts, 384]; it reads 256 of its tokens. Raises EmbedderError."""
    from rag_store.embedders.transformer import open_minilm

    return np.stack([each.vector for each in open_minilm().embed(texts)])


def retrieved_labels(
    texts: Sequence[str], documents: Sequence[tuple[str, str, str]]
) -> tuple[list[str], Clusters]:
    """The document each text is about by the RAG library, "" where it refuses, and the same as
    numbers. `documents` are id, title and text. Raises RagError."""
    found = asyncio.run(_labels(texts, documents))
    numbers = {doc_id: at for at, (doc_id, _, _) in enumerate(documents)}
    return found, np.array([numbers.get(each, REFUSED) for each in found], np.int64)


async def _labels(texts: Sequence[str], documents: Sequence[tuple[str, str, str]]) -> list[str]:
    from rag_store.documents import Document
    from rag_store.errors import RagError
    from rag_store.library import open_library
    from rag_store.settings import Settings

    with TemporaryDirectory(prefix="kvswarm-rag-") as folder:
        async with open_library(Settings(path=Path(folder))) as library:
            await library.ingest([Document(*each) for each in documents])
            labels = await library.label_many(list(texts))
    return ["" if isinstance(each, RagError) else each.doc_id or "" for each in labels]


@dataclass(frozen=True, slots=True)
class ArmScore:
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
    choice: FeatureChoice
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
) -> list[ArmScore]:
    """Every arm there is, in the order of the design. Raises KvError without the main arm."""
    if MAIN not in features:
        raise KvError(f"the features have no arm {MAIN}: make them by `kvswarm kv extract`")
    with threadpool_limits(1):
        rows: list[ArmScore] = []
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
    whole = FeatureChoice()
    choices: list[tuple[str, FeatureChoice, str]] = [(method, whole, "PCA") for method in METHODS]
    single = [FeatureChoice(pool, (part,)) for pool in POOLS for part in PARTS]
    choices += [("k-means", choice, "PCA") for choice in single]
    choices += [("k-means", FeatureChoice("last"), "PCA"), ("k-means", whole, "SVD")]
    choices.append(("k-means", FeatureChoice(layer_weights=early), "PCA"))
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
                    rows = by_pca(matrix(each, FeatureChoice(parts=(part,), layers=(layer,))))
                    scored = score(rows, each.topics, "k-means", seeds)
                    found.append(LayerScore(each.arm, part, layer, scored))
    return found


def _kv_rows(
    features: Mapping[str, FeatureSet], arm: str, against: str, seeds: int
) -> list[ArmScore]:
    if arm not in features:
        return []
    each = features[arm]
    labels = each.contexts if against == CONTEXT else each.topics
    scored = score(by_pca(matrix(each, FeatureChoice())), labels, "k-means", seeds)
    return [ArmScore(arm, each.source, against, scored, scored.centroid)]


def _text_rows(
    features: FeatureSet, documents: Sequence[tuple[str, str, str]], seeds: int
) -> list[ArmScore]:
    texts, labels = [str(text) for text in features.texts], features.topics
    rows = []
    for name, found in ((WORDS, tfidf_rows(texts)), (ENCODER, encoder_rows(texts))):
        reduced = by_svd(found) if name == WORDS else by_pca(found)
        scored = score(reduced, labels, "k-means", seeds)
        rows.append(ArmScore(f"{name}:{features.arm}", name, TOPIC, scored, scored.centroid))
    retrieved, clusters = retrieved_labels(texts, documents)
    right = sum(one == other for one, other in zip(retrieved, labels, strict=True)) / len(texts)
    scored = score_groups(labels, clusters, seeds)
    rows.append(ArmScore(f"{RAG}:{features.arm}", RAG, TOPIC, scored, right))
    return rows
