"""`kvswarm rag tune`."""

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rag_store.cli.index import shown_progress
from rag_store.cli.options import Parser, number
from rag_store.documents import Document
from rag_store.embedders.adapter import Adapter, read_adapter, write_adapter
from rag_store.embedders.minilm import WEIGHTS, pinned_folder
from rag_store.embedders.spec import ADAPTABLE, EmbedderSpec, needed
from rag_store.embedders.transformer import load_model, parameters_digest, weights_digest
from rag_store.errors import EmbedderError, RagUsageError
from rag_store.ingest import Progress
from rag_store.readers import adapter_path, read_documents
from rag_store.readers.place import Place, place_of

if TYPE_CHECKING:
    from rag_store.tuning.training import Tuned


async def tune_command(arguments: list[str]) -> int:
    """Train the embedder on a corpus; the file is written when that is done."""
    parsed = _parser().parse_args(arguments)
    documents = _documents(parsed.corpus)
    if parsed.out is None and parsed.embedder != "minilm":
        raise RagUsageError(
            f"the file beside a corpus is for minilm: name one for {parsed.embedder} with -o"
        )
    out = parsed.out or adapter_path(parsed.corpus)
    _check_out(out)
    begun_s = time.monotonic()
    with shown_progress("learning") as told:
        tuned = await asyncio.to_thread(_tune, parsed, out, documents, told)
    took_s = time.monotonic() - begun_s
    print(
        f"learned from {tuned.texts} texts about {len(documents)} documents in {took_s:.0f} s:"
        f" {out}"
    )
    if tuned.aside:
        print(
            f"of {tuned.aside} questions kept aside it gives {tuned.after:.1%} to their document,"
            f" {tuned.before:.1%} before"
        )
    return 0


def _tune(
    parsed: argparse.Namespace, out: Path, documents: Sequence[Document], told: Progress
) -> "Tuned":
    spec = EmbedderSpec(parsed.embedder, parsed.embedder_model)
    minilm = spec.kind == "minilm"
    model = str(pinned_folder()) if minilm else needed(spec, "model")
    tokenizer, encoder = load_model(model)
    base = WEIGHTS if minilm else weights_digest(model) or parameters_digest(encoder)
    start = None if parsed.start is None else _start(parsed.start, base)
    from rag_store.tuning.training import Course, tune

    course = Course(parsed.epochs, parsed.rank, parsed.seed)
    tuned = tune(tokenizer, encoder, documents, course, told, start)
    if not tuned.changes:
        raise EmbedderError(f"the model {model!r} has no linear layers to learn with")
    if not all(np.isfinite(part).all() for pair in tuned.changes.values() for part in pair):
        raise EmbedderError("learning led to numbers that are not finite: try another --seed")
    told(1, 1)  # after Ctrl-C it raises, and nothing is written
    write_adapter(out, base, tuned.changes, tuned.head)
    return tuned


def _start(path: Path, base: str) -> Adapter:
    adapter = read_adapter(path)
    adapter.check(base)
    return adapter


def _documents(corpus: Path) -> tuple[Document, ...]:
    documents = read_documents(corpus)
    if len(documents) < 2:
        raise RagUsageError(f"{corpus} has one document: there is nothing to tell apart")
    if not any(each.questions for each in documents):
        raise RagUsageError(
            f"{corpus} has no questions to learn from: write some first, with kvswarm rag expand"
        )
    return documents


def _check_out(path: Path) -> None:
    place = place_of(path)
    if place is Place.FOLDER:
        raise RagUsageError(
            f"-o {path} is a folder: name a file, such as {path}/adapter.safetensors"
        )
    if place_of(path.absolute().parent) is not Place.FOLDER:
        raise RagUsageError(f"-o {path}: {path.parent} is no folder: make it or name another")
    if place is not Place.NOTHING and not _is_adapter(path):
        raise RagUsageError(f"-o {path} exists and is no adapter: name another, or remove it")
    if not os.access(path.absolute().parent, os.W_OK):
        raise RagUsageError(f"-o {path}: {path.parent} cannot be written to: name another")


def _is_adapter(path: Path) -> bool:
    try:
        read_adapter(path)
    except RagUsageError:
        return False
    return True


def _parser() -> Parser:
    parser = Parser(
        "tune", "have the embedder learn which questions are about which document of a corpus"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="PATH",
        help="documents with their questions, as `index` reads them",
    )
    parser.add_argument("-o", "--out", type=Path, help="file to write (default: beside the corpus)")
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="FILE",
        help="adapter of this corpus to go on from, slowly and with every weight of the layers",
    )
    parser.add_argument("--embedder", choices=ADAPTABLE, default="minilm", help="which learns")
    parser.add_argument("--embedder-model", default="", help="folder or name of hf-encoder")
    parser.add_argument(
        "--epochs", type=number(int, 1, 1000), default=3, help="passes over all texts"
    )
    parser.add_argument(
        "--rank", type=number(int, 1, 1024), default=16, help="of the changes to each layer"
    )
    parser.add_argument("--seed", type=number(int, 0, 2**32 - 1), default=1, help="of all chance")
    return parser
