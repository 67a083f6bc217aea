"""The demo corpus in several sizes, as folders."""

import ast
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from loadgen.sweep.matrix import UNSAFE
from loadgen.workload.corpus import Corpus, load_corpus, load_documents

CORPORA = "corpora"
"""What stands on a page for the folder where they lie."""

_SHORTEST = 8
"""Letters of a place that are still taken for it, where a name was cut off inside."""
QUESTIONS = "questions.jsonl"
SIZES = (6, 900)
"""Other than the whole, which is the corpus of a run without --corpus; the larger one has texts of
Python's own library beside it."""
_LEAST_LETTERS = 350
"""Of a docstring that is taken for a document."""


def write_corpora(folder: Path) -> None:
    """A folder for each size, named by its number of documents; what is there stays."""
    corpus = load_corpus()
    for size in SIZES:
        target = folder / str(size)
        if not (target / QUESTIONS).is_file():
            _write(corpus, size, target)


def library_texts() -> Iterator[tuple[str, str]]:
    """Names and docstrings of Python's standard library, tests left out, in the order of files."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).with_suffix("").parts
        if not {"site-packages", "test", "tests", "idlelib"}.intersection(module):
            yield from _docstrings(".".join(module), path)


def texts_of(corpus: Path | None) -> list[str]:
    """Of the documents of a corpus, by default of the standard library."""
    if corpus is None:
        return [text for _, text in library_texts()]
    return [each.text for each in load_documents(corpus)]


def _docstrings(module: str, path: Path) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # a few are kept to be refused
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) >= _LEAST_LETTERS:
                yield (
                    f"{module}.{getattr(node, 'name', 'module')}-{getattr(node, 'lineno', 0)}",
                    text,
                )


def without_places(text: str, corpora: Iterable[str]) -> str:
    """Without the folders in which logs and these corpora lie: as paths, and as they stand in the
    names of cells, which may be cut off."""
    text = re.sub(r" \(log: [^)\n]*\)", "", text)
    for place in {str(Path(corpus).parent) for corpus in corpora}:
        text = text.replace(place, CORPORA)
        named = UNSAFE.sub("-", place).strip("-.")
        for length in range(len(named), _SHORTEST, -1):
            text = text.replace(f"_{named[:length]}", f"_{CORPORA}")
    return text


def all_documents() -> int:
    """Documents of the whole corpus."""
    return len(load_corpus().documents)


def _write(corpus: Corpus, size: int, target: Path) -> None:
    """The first ones first, so that a run of few contexts asks about the same documents in all
    sizes."""
    target.mkdir(parents=True, exist_ok=True)
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
    for name, text in islice(library_texts(), max(0, size - len(corpus.documents))):
        (target / f"zz-{name}.md").write_text(text, encoding="utf-8")
    (target / QUESTIONS).write_text("".join(lines), encoding="utf-8")
