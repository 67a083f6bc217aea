"""Embeddings of made documents, put together from those of their sentences.

A real pass over a chunk takes 35 ms of a core, so 30,000 chunks would take a quarter of an hour.
There are few sentences, though, and a chunk is some of them. What a label costs depends on how many
vectors and word states there are; how often it is right cannot be told by such embeddings.
"""

from collections.abc import Sequence

import numpy as np
from rag_corpus import TITLE_JOINT, sentences_of, split_sentences

from rag_store.documents import Document
from rag_store.embedders.protocol import Embedder, Embedding, Identity, unit


class MadeEmbedder:
    """An embedder with the identity of the one whose embeddings it puts together."""

    def __init__(self, embedder: Embedder, documents: Sequence[Document]) -> None:
        """Embed every sentence of the documents once."""
        self._embedder = embedder
        halves = {half for each in documents for half in each.title.split(TITLE_JOINT)}
        sentences = {sentence for each in documents for sentence in sentences_of(each)}
        self._sentences = sorted(sentences)
        texts = [*self._sentences, *sorted(halves - sentences)]
        self._known = dict(zip(texts, embedder.embed(texts), strict=True))
        self._cut: dict[str, Embedding | None] = {}

    @property
    def identity(self) -> Identity:
        """That of the real one, so that its queries fit."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each passage."""
        return [self._passage(text) for text in texts]

    def _passage(self, text: str) -> Embedding:
        title, _, body = text.partition("\n")
        pieces = split_sentences(body)
        found = [self._known.get(half) for half in title.split(TITLE_JOINT)]
        found += [self._known.get(piece) or self._part(piece) for piece in pieces]
        return _together([each for each in found if each is not None])

    def _part(self, piece: str) -> Embedding | None:
        """What a piece has of the sentence it is cut from; None where there is no such sentence."""
        if piece not in self._cut:
            whole = next((sentence for sentence in self._sentences if piece in sentence), None)
            self._cut[piece] = self._share(whole, piece) if whole else None
        return self._cut[piece]

    def _share(self, whole: str, piece: str) -> Embedding:
        known = self._known[whole]
        words, begin = len(known.states) / len(whole), whole.index(piece)
        first = round(words * begin)
        last = max(first + 1, round(words * (begin + len(piece))))
        return Embedding(known.vector, known.states[first:last])


def _together(parts: Sequence[Embedding]) -> Embedding:
    """The parts' mean, each counting as many times as it has words, and all their states."""
    vectors = np.stack([part.vector * max(1, len(part.states)) for part in parts])
    states = np.concatenate([part.states for part in parts])
    return Embedding(unit(vectors.sum(axis=0, keepdims=True))[0], states)
