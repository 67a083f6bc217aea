"""`kvswarm kv`: what KV caches know about the requests that filled them."""

import argparse
import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.made_by import measured_now, told, without_folders
from loadgen.errors import UsageError
from loadgen.launch.arguments import (
    CommandParser,
    add_target_options,
    needs,
    target_arguments,
    target_names,
)
from loadgen.launch.target_run import model_named
from loadgen.launch.terminal import interruptible, say, tell
from loadgen.runs.directory import require_writable
from loadgen.scratch import expanded
from loadgen.targets.hardware import require_free
from loadgen.targets.settings import LOOPBACK
from loadgen.targets.trained_model import TRAINED

if TYPE_CHECKING:
    from kv_tiers.link import LinkProxy

TARGET = "vllm-lmcache"
NAMED = ("kvswarm", "torch", "transformers", "constriction", "zstandard")


def kv_command(arguments: list[str]) -> int:
    """Record prompts with their stored KV, make features of recorded ones, or serve labels."""
    parsed = _parser().parse_args(arguments)
    parsed.arguments = arguments
    with needs("kv"):
        from kv_reading import KvError

        try:
            return COMMANDS[parsed.command](parsed)
        except KvError as error:
            raise UsageError(str(error)) from error


def _record(parsed: argparse.Namespace) -> int:
    from loadgen.launch.kv_record import KvRecording, record

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
    from kv_reading.extract import extract

    require_writable(parsed.run, "RUN")
    moved = model_named(parsed.model)
    report = extract(parsed.run, Path(moved) if moved else None, parsed.reference)
    tell("\n".join((*report.lines, str(report.path))))
    return 0


def _serve(parsed: argparse.Namespace) -> int:
    from kv_reading.labelling import KvLabeller, read_earlier
    from kv_reading.service import KvService, bound_socket, serve
    from loadgen.launch.label_service import earlier_questions
    from loadgen.launch.target_run import demo_model

    model = expanded(model_named(parsed.model) or demo_model("tiny")).resolve()
    with bound_socket(parsed.bind, parsed.port) as listener:
        earlier = read_earlier(parsed.questions or earlier_questions(None, None), parsed.split)
        service = KvService(KvLabeller(model, earlier), parsed.name or model.name)
        facts, (host, port) = service.facts, listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        said = (
            f"labelling by the KV of {facts.model}, {facts.questions} earlier questions about"
            f" {facts.documents} documents, at http://{address} until Ctrl-C"
        )
        serve(service, listener, lambda: tell(said))
    return 0


def _codecs(parsed: argparse.Namespace) -> int:
    require_writable(parsed.out)
    with needs("trained,report,codecs"):
        from dashboards.kv_codecs_page import PROFILE, codec_findings, write_codecs_page
        from dashboards.studies.corpora import texts_of
        from kv_policies import PolicyError
        from kv_policies.codec_trial import CodecPlan, try_codecs

        plan = CodecPlan(parsed.texts, parsed.prompt_tokens, parsed.read_tokens)
        try:
            model, texts = Path(model_named(parsed.model) or ""), texts_of(parsed.corpus)
            trial = try_codecs(model, texts, plan=plan, say=say)
        except PolicyError as error:
            raise UsageError(str(error)) from error
        parsed.out.mkdir(parents=True, exist_ok=True)
        words = ["kvswarm", "kv", *without_folders(told(parsed.arguments))]
        page = write_codecs_page(trial, measured_now(words, NAMED), parsed.out)
    tell("\n".join((*codec_findings(trial), str(page), str(page.with_name(PROFILE)))))
    return 0


def _link(parsed: argparse.Namespace) -> int:
    from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule

    host, _, port = parsed.to.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) < 65536:
        raise UsageError(f"--to {parsed.to} is no address: give HOST:PORT")
    chosen = [each for each in parsed.listen if each]
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"--listen {chosen[0]}: each port is one client, name it once")
    if int(port) in chosen and host in (LOOPBACK, "localhost"):
        raise UsageError(f"--to {parsed.to} is the link itself: name the store behind it")
    if (parsed.rate_mbit is None) == (parsed.schedule is None):
        raise UsageError("give the link's rate: either --rate-mbit or --schedule")
    try:
        if parsed.schedule is None:
            schedule = RateSchedule.fixed(parsed.rate_mbit)
        else:
            schedule = RateSchedule.read(parsed.schedule)
        settings = LinkSettings(
            schedule, SCHEDULERS[parsed.scheduler], parsed.latency_ms, parsed.jitter_ms
        )
    except OSError as error:
        raise UsageError(f"cannot read the schedule {parsed.schedule}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    ports = [require_free(LOOPBACK, each, "--listen") for each in parsed.listen]
    proxy = LinkProxy(settings, ports, host.strip("[]"), int(port))
    return asyncio.run(_carry(proxy, f"to {parsed.to}, {parsed.scheduler}, until Ctrl-C"))


async def _carry(proxy: "LinkProxy", said: str) -> int:
    with interruptible() as interruption:
        async with proxy:
            tell(f"a link from port {' and '.join(map(str, proxy.ports))} {said}")
            await asyncio.Event().wait()
    tell("\n".join(proxy.report().lines))
    return interruption.exit_code


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "record": _record,
    "extract": _extract,
    "serve": _serve,
    "codecs": _codecs,
    "link": _link,
}


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm kv",
        description="Record prompts together with the KV that LMCache stores for them, and turn"
        " stored KV into features; the study of both is `kvswarm study task4`. Label questions"
        " by their KV for `kvswarm run rag --labels kv`.",
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
    extract.add_argument("--model", metavar="DIR", help="folder of the model, if it has moved")
    extract.add_argument(
        "--reference", action="store_true", help="compute all KV by a forward pass, read none"
    )
    codecs = commands.add_parser("codecs", help="measure codecs of KV on a model's own")
    add = codecs.add_argument
    add("--model", default=TRAINED, metavar="DIR", help=f"a model's folder (default: {TRAINED})")
    add("--corpus", type=Path, help="texts (default: the docstrings of Python's library)")
    add("--texts", type=int, default=16, metavar="N", help="half of them fit the profile")
    add("--prompt-tokens", type=int, default=512, metavar="N", help="whose KV is encoded")
    add("--read-tokens", type=int, default=64, metavar="N", help="read by the model after them")
    add(
        "--out",
        type=Path,
        default=Path("runs/kv-codecs"),
        metavar="DIR",
        help="for page and profile",
    )
    _add_link(commands.add_parser("link", help="a scarce link between clients and a store"))
    serve = commands.add_parser("serve", help="label questions by their KV over HTTP")
    add = serve.add_argument
    add("--model", metavar="DIR", help="that the engine serves (default: demo model)")
    add("--name", help="under which the engine serves it (default: the folder's)")
    add("--questions", type=Path, metavar="PATH", help="earlier ones (default: the demo corpus's)")
    add("--split", default="", help="only these of them (default: dev, where there are such)")
    add("--bind", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8091, help="0: a free one")
    return parser


def _add_link(parser: argparse.ArgumentParser) -> None:
    from kv_tiers.link import SCHEDULERS

    add = parser.add_argument
    add(
        "--listen",
        type=int,
        action="append",
        required=True,
        metavar="PORT",
        help="on the loopback, 0: a free one; given several times, each port is one client",
    )
    add("--to", required=True, metavar="HOST:PORT", help="the store")
    add("--rate-mbit", type=float, metavar="R", help="megabits a second, each way")
    add("--schedule", type=Path, metavar="FILE", help="lines of `seconds rate_mbit` instead")
    add("--scheduler", choices=[*SCHEDULERS], default="fifo", help="whose bytes go next")
    add("--latency-ms", type=float, default=0.0, metavar="MS", help="each way")
    add("--jitter-ms", type=float, default=0.0, metavar="MS", help="up to so much on top of it")
