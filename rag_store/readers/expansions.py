"""What lies beside a corpus: questions that its documents answer, and an adapter to it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rag_store.documents import Document, distinct
from rag_store.errors import CorpusError
from rag_store.readers.place import Place, file_at, place_of
from rag_store.readers.rows import read_rows


def expansions_path(source: Path) -> Path:
    """`expansions.jsonl` in a folder, `<name>.expansions.jsonl` beside the file `<name>.jsonl`.

    Raises CorpusError.
    """
    if place_of(source) is Place.FOLDER:
        return source / "expansions.jsonl"
    return source.with_suffix(".expansions.jsonl")


def adapter_path(source: Path) -> Path:
    """Where an encoder's adapter to the corpus is looked for: beside the expansions.

    Raises CorpusError.
    """
    if place_of(source) is Place.FOLDER:
        return source / "adapter.safetensors"
    return source.with_suffix(".adapter.safetensors")


def with_expansions(documents: Sequence[Document], path: Path) -> tuple[Document, ...]:
    """The documents with the questions of the file, if there is one, after their own.

    Its lines hold doc_id (or _id) and questions, a list. Those with the digest of another text, as
    `kvswarm rag expand` leaves them behind, count for nothing. Raises CorpusError.
    """
    if place_of(path) is Place.NOTHING:
        return tuple(documents)
    found = {document.doc_id: [*document.questions] for document in documents}
    texts = {document.doc_id: document.text_digest for document in documents}
    for row in read_rows(file_at(path)):
        doc_id = row.identifier("doc_id", "_id")
        if "digest" in row.fields and row.fields["digest"] != texts.get(doc_id):
            continue
        if doc_id not in found:
            raise CorpusError(f"{row.at}: {doc_id!a} is no document of the corpus: drop the line")
        found[doc_id] += row.texts("questions")
    return tuple(replace(each, questions=distinct(found[each.doc_id])) for each in documents)
