"""The demo corpus in several sizes, as folders."""

import json
from pathlib import Path

from loadgen.workload.corpus import Corpus, load_corpus

SIZES = (6, 12)
"""Smaller than the whole, which is the corpus of a run without --corpus."""


def write_corpora(folder: Path) -> None:
    """A folder for each size, named by its number of documents; what is there stays."""
    corpus = load_corpus()
    for size in SIZES:
        target = folder / str(size)
        if not target.is_dir():
            _write(corpus, size, target)


def all_documents() -> int:
    """Documents of the whole corpus."""
    return len(load_corpus().documents)


def _write(corpus: Corpus, size: int, target: Path) -> None:
    """The first ones, so that a run of few contexts asks about the same documents in all sizes."""
    target.mkdir(parents=True)
    lines = []
    for document in corpus.documents[:size]:
        (target / f"{document.doc_id}.md").write_text(document.text, encoding="utf-8")
        for question in corpus.questions[document.doc_id]:
            row = {
                "qid": question.question_id,
                "question": question.text,
                "doc_id": question.doc_id,
            }
            lines.append(f"{json.dumps(row)}\n")
    (target / "questions.jsonl").write_text("".join(lines), encoding="utf-8")
