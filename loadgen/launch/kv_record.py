"""Prompts sent to an engine whose LMCache writes every chunk to files."""

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from kv_reading.recording import (
    CHUNKS,
    KV_JSON,
    LIBRARY_JSONL,
    Design,
    Ids,
    KvRequest,
    RunFacts,
    Source,
    cut_sources,
    make_requests,
    write_requests,
)
from kv_reading.stored import FsTier, chunk_digests, parse_name
from loadgen.errors import TargetError, UsageError
from loadgen.launch.arguments import TargetArguments
from loadgen.launch.target_run import choose_targets, target_settings, tokenizer_of
from loadgen.launch.terminal import awaited, interruptible, say
from loadgen.runs.directory import check_directory
from loadgen.runs.json_file import write_json
from loadgen.runs.lock import locked
from loadgen.targets.catalog import TargetSpec
from loadgen.targets.demo_model import MARK
from loadgen.targets.engine_api import ApiError, complete
from loadgen.targets.hardware import detect_platform
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget, start_target
from loadgen.workload.corpus import Corpus, load_corpus

WRITTEN_TIMEOUT_S = 120.0
"""LMCache writes files after the reply; this long is waited for the last one."""


@dataclass(frozen=True, slots=True)
class KvRecording:
    """What is to be recorded, and where; `chunks` is how many a long question fills."""

    target: str
    arguments: TargetArguments
    out: Path
    corpus: Path | None = None
    documents: int | None = None
    questions: int = 4
    chunks: int = 2
    seed: int = 0


async def record(recording: KvRecording) -> int:
    """Record into a new directory; returns 0, or what a shell reports after a signal.

    Raises UsageError, KvError and TargetError; a directory without `kv.json` is not complete.
    """
    check_directory(recording.out)
    if (recording.out / KV_JSON).exists():
        raise UsageError(f"{recording.out} already holds a recording: name another --out")
    settings = target_settings(recording.arguments)
    if settings.model_dir is None:
        raise UsageError(f"--model {settings.model} is no folder: its files are needed, give one")
    (spec,) = choose_targets([recording.target], recording.arguments)
    chunks = (recording.out / CHUNKS).resolve()
    spec = with_fs_tier(spec, chunks)
    chunk_tokens = chunk_tokens_of(spec)
    requests, library = _prompts(recording, settings, chunk_tokens)
    with locked(recording.out, "recording"), interruptible() as interruption:
        empty_tier(chunks)
        write_requests(recording.out, requests)
        _write_library(recording.out, library)
        say(f"starting {spec.name} …")
        logs = recording.out / "engine"
        async with awaited(start_target(spec, settings, logs), spec.name, logs) as target:
            long = [each for each in requests if not each.prompt.startswith("short")]
            await _send(target, long)
            await _written(chunks, long, chunk_tokens)
            facts = RunFacts(
                model=str(settings.model_dir),
                random_weights=(settings.model_dir / MARK).is_file(),
                chunk_tokens=chunk_tokens,
                seed=recording.seed,
                versions=target.facts()["versions"],
            )
            write_json(recording.out / KV_JSON, facts.as_json())
    is_complete = (recording.out / KV_JSON).exists()
    return 0 if is_complete else interruption.exit_code or 130


def with_fs_tier(spec: TargetSpec, folder: Path) -> TargetSpec:
    """The target with LMCache writing each chunk to a file of the folder as well.

    Raises UsageError for a target without LMCache.
    """
    if spec.of_role("cache") is None:
        raise UsageError(
            f"target {spec.name} stores no KV outside the engine: choose one with lmcache"
        )
    more = ("--l2-adapter", json.dumps({"type": "fs", "base_path": str(folder)}))
    services = (
        replace(each, argv=(*each.argv, *more)) if each.role == "cache" else each
        for each in spec.services
    )
    return replace(spec, services=tuple(services))


def _write_library(folder: Path, library: list[dict[str, str]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in library]
    (folder / LIBRARY_JSONL).write_text("\n".join(lines) + "\n", encoding="utf-8")


def empty_tier(folder: Path) -> None:
    """Make it, without the chunks of a recording that did not end: LMCache would take them for its
    own, whatever model they are of."""
    folder.mkdir(exist_ok=True)
    for path in [*folder.iterdir()]:
        if parse_name(path) is not None:
            path.unlink()


def chunk_tokens_of(spec: TargetSpec) -> int:
    """As the catalog tells LMCache on this hardware."""
    service = next(each for each in spec.services if each.role == "cache")
    addition = service.when.get(detect_platform())
    words = [*service.argv, *(addition.args if addition else ())]
    try:
        return int(words[len(words) - words[::-1].index("--chunk-size")])
    except (ValueError, IndexError):
        raise UsageError(
            f"target {spec.name} does not say how large LMCache's chunks are: add --chunk-size to"
            " its service in the targets file"
        ) from None


def _prompts(
    recording: KvRecording, settings: TargetSettings, chunk_tokens: int
) -> tuple[list[KvRequest], list[dict[str, str]]]:
    """The prompts, and the documents without the passages that stand for questions."""
    folder = tokenizer_of(settings)
    if folder is None:
        raise UsageError(
            f"{settings.model} has no local tokenizer.json: give its folder as --model"
        )
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    corpus = load_corpus(recording.corpus)
    design = Design(
        passage_tokens=recording.chunks * chunk_tokens,
        questions=recording.questions,
        documents=recording.documents,
        seed=recording.seed,
    )
    cuts = cut_sources(_sources(corpus, tokenizer), design)

    def text_of(ids: Ids) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    titles = {document.doc_id: document.title for document in corpus.documents}
    whole = {document.doc_id: document.text for document in corpus.documents}
    library = [
        {
            "doc_id": cut.source.doc_id,
            "title": titles[cut.source.doc_id],
            "text": text_of(cut.context + cut.rest),
            "whole": whole[cut.source.doc_id],
        }
        for cut in cuts
    ]
    return make_requests(cuts, design, text_of), library


def _sources(corpus: Corpus, tokenizer: Any) -> list[Source]:
    def ids(text: str) -> Ids:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    return [
        Source(
            document.doc_id,
            ids(document.text),
            tuple(
                (question.question_id, ids(question.text))
                for question in corpus.questions[document.doc_id]
            ),
        )
        for document in corpus.documents
    ]


async def _send(target: RunningTarget, requests: list[KvRequest]) -> None:
    """One after the other: what LMCache cannot write in time, it drops."""
    for number, request in enumerate(requests):
        if number % 100 == 0:
            say(f"{number} of {len(requests)} prompts sent")
        try:
            await complete(target.url, target.model, request.token_ids)
        except ApiError as error:
            target.check()
            raise TargetError(f"the engine does not answer ({error}): see its log") from error


async def _written(folder: Path, requests: list[KvRequest], chunk_tokens: int) -> None:
    """Wait for the last chunk; what never comes is told, and such requests are left out later."""
    digests = {each for r in requests for each in chunk_digests(r.token_ids, chunk_tokens)}
    for _ in range(int(WRITTEN_TIMEOUT_S)):
        missing = FsTier(folder).missing(list(digests))
        if not missing:
            break
        await asyncio.sleep(1)
    say(f"{len(digests) - missing} of {len(digests)} chunks are stored in {folder}")
