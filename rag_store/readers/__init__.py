"""Readers of corpora, questions and relevance judgements, one module for each format."""

from rag_store.readers.corpus import read_documents, read_queries
from rag_store.readers.judged import read_judged
from rag_store.readers.trec import read_qrels

__all__ = [
    "read_documents",
    "read_judged",
    "read_qrels",
    "read_queries",
]
