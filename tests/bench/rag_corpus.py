"""A library of any size: documents made of the sentences of real ones, always the same.

    python tests/bench/rag_corpus.py CHUNKS SOURCE … > distractors.jsonl

Each made document has sentences of two of the sources' documents, so that its chunks have a subject
as real ones do. A sentence comes back in many documents; a word therefore stands in more chunks
than in natural text of that size, and BM25 has more to add up.
"""

import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TextIO

from rag_store.documents import Chunker, Document
from rag_store.readers import read_documents, read_queries

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "rag" / "data"
DEMO = ROOT / "loadgen" / "workload" / "demo_corpus"
SOURCES = (DATA / "mixed.jsonl", DATA / "manual.jsonl", DEMO)
SENTENCES = (8, 24)
TITLE_JOINT = "; "
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def made_documents(chunks: int, sources: Sequence[Path] = SOURCES) -> list[Document]:
    """Documents of exactly so many chunks, as the default chunker cuts; more chunks begin alike."""
    real = [document for source in sources for document in read_documents(source)]
    documents: list[Document] = []
    left, cut = chunks, Chunker().cut
    for document in _endless(real):
        size = len(cut(document.text))
        if size <= left:
            documents.append(document)
            left -= size
        if left == 0:
            return documents
    raise AssertionError("unreachable: documents of one chunk come again and again")


def _endless(real: Sequence[Document]) -> Iterator[Document]:
    drawn = random.Random(1)
    sentences = {document.doc_id: sentences_of(document) for document in real}
    for number in count():
        first, second = drawn.sample(real, 2)
        pool = sentences[first.doc_id] + sentences[second.doc_id]
        # Every eighth is of one chunk, so that any number of chunks can be reached.
        wanted = 2 if number % 8 == 0 else drawn.randint(*SENTENCES)
        text = " ".join(drawn.sample(pool, min(wanted, len(pool))))
        title = f"{_half(first.title)}{TITLE_JOINT}{_half(second.title)}"
        yield Document(f"made-{number:05}", title, text)


def sentences_of(document: Document) -> list[str]:
    """Its sentences without headings."""
    lines = (line for line in document.text.split("\n") if not line.startswith("#"))
    return split_sentences(" ".join(lines))


def split_sentences(text: str) -> list[str]:
    """The text cut behind full stops that a capital follows."""
    found = _SENTENCE_END.split(" ".join(text.split()))
    return [sentence for sentence in found if sentence]


def _half(title: str) -> str:
    words = title.replace(TITLE_JOINT, " ").split()
    return " ".join(words[: (len(words) + 1) // 2])


def queries() -> list[str]:
    """Questions of all kinds about the sources and about nothing there, mixed."""
    files = sorted(DATA.glob("*questions.jsonl"))
    asked = [query.text for path in files for query in read_queries(path)]
    asked += [query.text for query in read_queries(DEMO, "dev")]
    texts = list(dict.fromkeys(asked))
    random.Random(1).shuffle(texts)
    return texts


def write_documents(documents: Iterable[Document], file: TextIO) -> None:
    """One JSON object a line, as `kvswarm rag index` and `rag eval --distractors` read them."""
    for document in documents:
        row = {"doc_id": document.doc_id, "title": document.title, "text": document.text}
        file.write(f"{json.dumps(row)}\n")


def main() -> None:
    """Write documents of CHUNKS chunks made of those at each SOURCE."""
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: rag_corpus.py CHUNKS SOURCE … > distractors.jsonl")
    write_documents(made_documents(int(sys.argv[1]), list(map(Path, sys.argv[2:]))), sys.stdout)


if __name__ == "__main__":
    main()
