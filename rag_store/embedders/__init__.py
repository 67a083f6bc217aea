"""Embedders behind one small protocol, and the queue before them."""

from rag_store.embedders.protocol import Embedder, Embedding, Identity, States, Vectors
from rag_store.embedders.spec import KINDS, EmbedderSpec, open_embedder

__all__ = [
    "KINDS",
    "Embedder",
    "EmbedderSpec",
    "Embedding",
    "Identity",
    "States",
    "Vectors",
    "open_embedder",
]
