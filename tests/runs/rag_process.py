"""A small corpus with questions, and `kvswarm rag serve` as a process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEXTS = {
    "paging": "The cache is cut into blocks, which a table maps to pages.",
    "raft": "A leader replicates its log to the followers.",
    "dough": "Bread rises when yeast ferments the dough.",
}
QUESTIONS = {
    "paging": "Which table maps blocks to pages?",
    "raft": "To whom does the leader replicate its log?",
    "dough": "What does yeast do to the dough?",
}


def write_corpus(folder: Path) -> Path:
    """A document and a question for each of TEXTS."""
    folder.mkdir()
    for doc_id, text in TEXTS.items():
        (folder / f"{doc_id}.txt").write_text(text)
    rows = [{"qid": f"q-{d}", "question": q, "doc_id": d} for d, q in QUESTIONS.items()]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@contextmanager
def rag_process(library: Path, *more: object) -> Iterator[str]:
    """The url of a service with an embedder that needs no model."""
    command = [sys.executable, "-m", "rag_store", "serve", "--port", 0, "--path", library]
    process = subprocess.Popen(
        list(map(str, [*command, "--embedder", "hashing", *more])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, process.communicate(timeout=30)[1]
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.kill()
        process.communicate()
