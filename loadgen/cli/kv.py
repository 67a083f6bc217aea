"""`kvswarm kv`: what stored KV caches know about the requests that filled them."""

import argparse
import asyncio
import time
from pathlib import Path

from loadgen.cli.arguments import Parser, add_target_options, target_arguments, target_names
from loadgen.errors import UsageError

TARGET = "vllm-lmcache"


def kv_command(arguments: list[str]) -> int:
    """Record prompts with their stored KV, or make features of recorded ones."""
    parsed = _parser().parse_args(arguments)
    try:
        from kv_tiers.errors import KvError

        try:
            return _record(parsed) if parsed.command == "record" else _extract(parsed)
        except KvError as error:
            raise UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this needs {error.name}, which is not installed: pip install 'kvswarm[kv]'"
        ) from error


def _record(parsed: argparse.Namespace) -> int:
    from loadgen.cli.kv_record import KvRecording, record

    names = target_names(parsed.target)
    if len(names) > 1:
        raise UsageError(f"`kvswarm kv record` takes one target, not {len(names)}")
    recording = KvRecording(
        target=names[0],
        arguments=target_arguments(parsed),
        out=parsed.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-kv",
        corpus=parsed.corpus,
        documents=parsed.documents,
        questions=parsed.questions,
        chunks=parsed.chunks,
        seed=parsed.seed,
    )
    code = asyncio.run(record(recording))
    if code == 0:
        print(recording.out)
    return code


def _extract(parsed: argparse.Namespace) -> int:
    from kv_tiers.extract import extract

    report = extract(parsed.run, parsed.model, parsed.reference)
    print("\n".join((*report.lines, str(report.path))))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvswarm kv",
        description="Record prompts together with the KV that LMCache stores for them, and turn"
        " stored KV into features. The study of both is `kvswarm study task4`.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="send prompts, keep what is stored")
    add = record.add_argument
    add("--target", default=TARGET, help="an engine with LMCache, see `kvswarm targets`")
    add("--out", type=Path, metavar="DIR", help="where it is kept (default: runs/TIME-kv)")
    add("--corpus", type=Path, help="folder or JSONL of documents (default: the demo corpus)")
    add("--documents", type=int, metavar="N", help="so many documents (default: all)")
    add("--questions", type=int, default=4, metavar="N", help="long questions a document")
    add("--chunks", type=int, default=2, metavar="N", help="chunks a question fills")
    add("--seed", type=int, default=0, help="of the choice of documents")
    add_target_options(record)
    extract = commands.add_parser("extract", help="make features.npz of what was recorded")
    extract.add_argument("run", type=Path, metavar="RUN", help="a directory of `kv record`")
    extract.add_argument("--model", type=Path, help="folder of the model, if it has moved")
    extract.add_argument(
        "--reference", action="store_true", help="compute all KV by a forward pass, read none"
    )
    return parser
