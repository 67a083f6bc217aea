"""Questions in a table of two columns, as MS MARCO and TREC have them."""

from collections.abc import Iterator
from pathlib import Path

from rag_store.documents import Query, clean
from rag_store.errors import CorpusError
from rag_store.readers.rows import check_id, read_text


def tsv_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of an id, a tab and the question; blank lines are skipped. Raises CorpusError."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        at = f"{path}:{number}"
        query_id, _, question = line.partition("\t")
        text = " ".join(clean(question).split())
        if text:
            yield at, Query(check_id(query_id.strip(), at), text)
        elif line.strip():
            raise CorpusError(f"{at}: no question: write its id, a tab and the question")
