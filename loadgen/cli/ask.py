"""`kvswarm ask QUESTION…`: the whole pipeline for one person at a terminal."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from loadgen.errors import TargetError, UsageError
from loadgen.launch.arguments import (
    CommandParser,
    add_target_options,
    refuse_engine_options,
    target_arguments,
)
from loadgen.launch.ask_session import AskArguments, AskSession
from loadgen.launch.terminal import interruptible
from loadgen.targets.trained_model import TRAINED

DEFAULT_TARGET = "vllm"
NO_UTF8 = "is not UTF-8, and cannot be sent: write it in UTF-8"


def ask_command(arguments: list[str]) -> int:
    """Ask each question; the exit code says whether all of them were answered."""
    return asyncio.run(_ask(_parse(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm ask",
        description="find the document a question is about, and stream the engine's answer",
    )
    parser.add_argument(
        "questions", nargs="+", metavar="QUESTION", help="one or more; - reads a line each of stdin"
    )
    parser.add_argument("--host", help="a running OpenAI-compatible server (default: start one)")
    parser.add_argument(
        "--target", help=f"the engine to start, see `kvswarm targets` (default: {DEFAULT_TARGET})"
    )
    parser.add_argument("--rag-url", help="a running `kvswarm rag serve` (default: start one)")
    parser.add_argument(
        "--corpus", type=Path, help="what a started one serves (default: the demo corpus)"
    )
    parser.add_argument(
        "--endpoint", choices=("completions", "chat"), help="default: chat if `trained` answers"
    )
    parser.add_argument("--output-tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--json", action="store_true", help="one JSON object for each question")
    add_target_options(parser)
    return parser


def _parse(arguments: list[str]) -> AskArguments:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.host == "":
        raise UsageError("--host is empty: name a server, or leave it out")
    if parsed.host and parsed.target:
        raise UsageError("give either --host URL or --target NAME")
    if parsed.host:  # a service of ours may be started beside it
        refuse_engine_options(parser, parsed, *(() if parsed.rag_url else ("start_timeout",)))
    if parsed.rag_url and parsed.corpus:
        raise UsageError("--corpus is for a service that kvswarm starts: leave out --rag-url")
    if parsed.output_tokens < 1:
        raise UsageError(f"--output-tokens {parsed.output_tokens}: give 1 or more")
    if not parsed.host and parsed.model is None and parsed.size is None:
        parsed.model = TRAINED
    is_trained = not parsed.host and parsed.model == TRAINED
    return AskArguments(
        questions=tuple(_questions(parsed.questions)),
        host=parsed.host,
        target=parsed.target or DEFAULT_TARGET,
        target_arguments=target_arguments(parsed),
        rag_url=parsed.rag_url,
        corpus=parsed.corpus,
        endpoint=parsed.endpoint or ("chat" if is_trained else "completions"),
        output_tokens=parsed.output_tokens,
        as_json=parsed.json,
    )


def _questions(given: Sequence[str]) -> Iterator[str]:
    if given == ["-"]:
        given = [line for line in _stdin().splitlines() if line.strip()]
        if not given:
            raise UsageError("nothing to ask: give one question a line")
    for question in given:
        if not question.strip():
            raise UsageError("a question is empty: say what you want to know")
        try:
            question.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the question {question[:40]!a} {NO_UTF8}") from None
        yield question


def _stdin() -> str:
    if sys.stdin is None:
        raise UsageError("stdin is closed: give the questions themselves, or lines on stdin")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise UsageError(f"stdin {NO_UTF8}") from None
    except OSError as error:
        raise UsageError(f"cannot read stdin: {error.strerror}: give the questions") from None


async def _ask(arguments: AskArguments) -> int:
    with interruptible() as interruption, _log_folder() as logs:
        async with AsyncExitStack() as stack:
            return await AskSession(arguments, logs, stack).ask_all()
    return 128 + interruption.signal_number


@contextmanager
def _log_folder() -> Iterator[Path]:
    """A folder for logs; it stays only where an error points to one."""
    folder = Path(tempfile.mkdtemp(prefix="kvswarm-ask-"))
    keep = False
    try:
        yield folder
    except TargetError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
