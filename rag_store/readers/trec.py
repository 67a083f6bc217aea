"""Relevance judgements: TREC's four columns, or BEIR's three with a heading."""

from collections.abc import Iterator
from pathlib import Path

from rag_store.errors import CorpusError
from rag_store.readers.rows import read_text


def read_qrels(path: Path) -> dict[str, tuple[str, ...]]:
    """The relevant documents of each query, in the file's order.

    Lines are `query iteration document relevance` or `query document relevance`, split at
    whitespace; only a relevance above 0 counts. Raises CorpusError.
    """
    found: dict[str, list[str]] = {}
    for query_id, doc_id, relevance in _judgements(path):
        gold = found.setdefault(query_id, [])
        if relevance > 0 and doc_id not in gold:
            gold.append(doc_id)
    if not found:
        raise CorpusError(f"{path} holds no judgement: give lines of query, document, relevance")
    return {query_id: tuple(gold) for query_id, gold in found.items()}


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        fields = text.split()
        if not fields or fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise CorpusError(
                f"{path}:{line}: {len(fields)} fields: write query, document, relevance,"
                " or query, iteration, document, relevance"
            )
        yield fields[0], fields[-2], _relevance(fields[-1], f"{path}:{line}")


def _relevance(text: str, at: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise CorpusError(f"{at}: field 'relevance' is {text!a}: give a whole number") from error
