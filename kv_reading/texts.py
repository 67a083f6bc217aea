"""What is known without KV: words, a sentence encoder, and the label that retrieval finds."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from kv_reading.clustering import Clusters
from kv_reading.kv import Floats

REFUSED = -1


def tfidf_rows(texts: Sequence[str]) -> Floats:
    """Words by TF-IDF, [texts, words]."""
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    rows: Floats = vectorizer.fit_transform(texts).toarray().astype(np.float32)
    return rows


def encoder_rows(texts: Sequence[str]) -> Floats:
    """By all-MiniLM-L6-v2, [texts, 384]; it reads 256 of its tokens. Raises EmbedderError."""
    from rag_store.embedders.minilm import open_minilm

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
