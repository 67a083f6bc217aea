"""Readers of corpora, questions and relevance judgements; they need nothing but Python."""

from rag_store.readers.corpus import (
    each_query,
    read_documents,
    read_judged,
    read_queries,
    unread_note,
)
from rag_store.readers.datasets import read_qrels

__all__ = [
    "each_query",
    "read_documents",
    "read_judged",
    "read_qrels",
    "read_queries",
    "unread_note",
]
