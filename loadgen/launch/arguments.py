"""The command line of `kvswarm run`, `ui` and `serve`: ours here, the rest is Locust's.

Sweeps and searches write it too. Imports little: a run against a host must start fast.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError
from loadgen.launch.configured import as_words, is_on, setting, settings_of, value_of
from loadgen.runs.directory import DEFAULT_FILE, reason_of, require_file
from loadgen.scratch import expanded
from loadgen.targets.context_scheduler import KEYS, POLICIES, ContextSchedulerSettings
from loadgen.targets.settings import KV_CODECS, PROFILED_CODEC, ROUTERS
from rag_store.cli.output import fitted
from rag_store.cli.suggestion import suggested
from rag_store.extras import install_command

if TYPE_CHECKING:  # it brings a tokenizer, and a run against a host must start fast
    from loadgen.targets.demo_model import Size

AS_THE_MASTER = "http://the-master-says"
"""The host of a worker, until its master has told it."""
ENGINE_GROUPS = (
    "engines that kvswarm starts",
    "of these, targets with several engines",
    "of these, targets that serve context by context",
)
"""Titles of the options that mean nothing where a host is named that runs."""
OF_ANY_ENGINE = ("model", "size", "engine_arg", "start_timeout")
"""Options that mean the same for all that we start."""
SHARED_FILES = {"--csv": "_stats.csv", "--html": "", "--json-file": ".json", "--logfile": ""}
"""Locust's options that name a file, with what Locust adds to its name: the runs on several targets
would overwrite it."""


@dataclass(frozen=True, slots=True)
class TargetArguments:
    """How an engine of ours is to be started. Raises UsageError."""

    catalog: Path | None
    model: str | None
    size: "Size"
    kv_tokens: int | None
    l1_gb: float
    l2_dir: Path | None
    kv_codec: str
    engine_args: tuple[str, ...]
    start_timeout_s: float
    context_scheduler: ContextSchedulerSettings
    replicas: int | None = None
    router: str | None = None
    l2_gb: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.start_timeout_s < math.inf:
            raise UsageError(f"--start-timeout {self.start_timeout_s:g}: give seconds above 0")


@dataclass(frozen=True, slots=True)
class RunArguments:
    """What to run, against what, where to keep it; `rest` goes to Locust as it is.

    `targets` is empty where `host` says what to load.
    """

    file: str
    host: str | None
    targets: tuple[str, ...]
    target_arguments: TargetArguments
    out: Path
    rest: tuple[str, ...]


class CommandParser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.register("type", Path, expanded)

    def format_help(self) -> str:
        return fitted(super().format_help(), sys.stdout)

    def error(self, message: str) -> None:  # type: ignore[override]
        said = suggested(message, self._option_string_actions)
        raise UsageError(said if said != message else f"{message}: see `{self.prog} --help`")


@contextmanager
def needs(extras: str, user: str = "this") -> Iterator[None]:
    """Have a library that the base installation leaves out told with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{user} needs {error.name}, which is not installed: {install_command(extras)}"
        ) from error


def run_parser(command: str) -> argparse.ArgumentParser:
    """The options of `kvswarm run` and `kvswarm ui` that are not Locust's."""
    names = "NAME[,NAME…]" if command == "run" else "NAME"
    parser = CommandParser(
        prog=f"kvswarm {command}",
        usage=f"kvswarm {command} [FILE] --target {names} | --host URL"
        " [options] [any Locust option]",
        description="FILE is a locustfile or the name of a shipped one (default: unordered).",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--host", "-H", help="a running OpenAI-compatible server, e.g. http://host:8000"
    )
    parser.add_argument(
        "--target",
        metavar=names,
        help="an engine to start for this run, see `kvswarm targets`"
        + ("; several have the same run in turn" if command == "run" else ""),
    )
    parser.add_argument("--out", help="the run directory (default: runs/TIME-NAME)")
    add_target_options(parser)
    return parser


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how an engine is started.

    All but `--model` stand in `ENGINE_GROUPS`: whoever loads a host that runs is refused them. None
    has a default here, so that what was given can be told.
    """
    parser.add_argument("--model", help="model to serve, `trained` makes sense (default: random)")
    add = parser.add_argument_group(ENGINE_GROUPS[0]).add_argument
    add("--targets", type=Path, help="a TOML file with targets of your own")
    add("--size", choices=("tiny", "small"), help="demo model size (default: tiny)")
    add("--kv-tokens", type=int, help="usable tokens of the engine's KV cache")
    add("--l1-gb", type=float, help="GiB of memory behind the engine's cache (default: 1.0)")
    add("--l2-dir", type=Path, help="where a tier on disk makes its folder (default: /tmp)")
    add("--l2-gb", type=float, help="GiB of each node behind a network (default: 1.0)")
    codecs = ", ".join((*KV_CODECS, f"{PROFILED_CODEC}:FILE"))
    add("--kv-codec", help=f"of KV behind a network: {codecs} (default: lossless)")
    add("--engine-arg", action="append", help="--engine-arg=--FLAG")
    add("--start-timeout", type=float, help="seconds to get ready (default: 600)")
    add = parser.add_argument_group(ENGINE_GROUPS[1]).add_argument
    add("--replicas", type=int, help="how many engines (default: 2)")
    add("--router", choices=ROUTERS, help="what chooses one (default: cache_aware)")
    _add_context_scheduler_options(parser)


def our_flags() -> list[str]:
    """Options of `kvswarm run`, of which Locust need not know."""
    return list(run_parser("run")._option_string_actions)


def _add_context_scheduler_options(parser: argparse.ArgumentParser) -> None:
    """Options of the targets that serve context by context; the plugin knows their defaults."""
    add = parser.add_argument_group(ENGINE_GROUPS[2]).add_argument
    add("--policy", choices=POLICIES, help="which context is next")
    add("--key", choices=KEYS, help="what tells the contexts apart")
    add("--quantum", type=int, help="most requests of one context in a row")
    add("--max-overtakes", type=int, help="overtakes after which a request decides who is next")
    add("--max-wait-s", type=float, help="seconds of waiting after which it does")
    add("--window", type=int, help="how many contexts are looked at for the next")
    add("--min-kv-usage", type=float, help="cache usage, 0 to 1, below which order is untouched")


def target_arguments(parsed: argparse.Namespace) -> TargetArguments:
    """The part of a parsed command line that concerns the engine."""
    return TargetArguments(
        catalog=parsed.targets,
        model=parsed.model,
        size=parsed.size or "tiny",
        kv_tokens=parsed.kv_tokens,
        l1_gb=1.0 if parsed.l1_gb is None else parsed.l1_gb,
        l2_dir=parsed.l2_dir,
        kv_codec=parsed.kv_codec or "lossless",
        engine_args=tuple(parsed.engine_arg or ()),
        start_timeout_s=600.0 if parsed.start_timeout is None else parsed.start_timeout,
        replicas=parsed.replicas,
        router=parsed.router,
        l2_gb=parsed.l2_gb,
        context_scheduler=ContextSchedulerSettings(
            **{
                field.name: getattr(parsed, field.name)
                for field in fields(ContextSchedulerSettings)
            }
        ),
    )


def target_names(text: str) -> tuple[str, ...]:
    """The names in `A,B`. Raises UsageError for an empty or a repeated one."""
    names = tuple(name.strip() for name in text.split(","))
    for name, following in pairwise([*sorted(names), None]):
        if not name:
            raise UsageError(f"--target {text!r} has an empty name: give NAME or NAME,NAME")
        if name == following:
            raise UsageError(f"--target {text} names {name} twice: each is run once")
    return names


def first_word(arguments: Sequence[str], default: str = "") -> tuple[str, list[str]]:
    """RUN or FILE before all options, and what stands behind it."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], list(arguments[1:])
    return default, list(arguments)


def parse_run(command: str, arguments: list[str]) -> RunArguments:
    """Split a command line into ours and Locust's. Raises UsageError."""
    file, arguments = first_word(arguments, DEFAULT_FILE)
    parser = run_parser(command)
    parsed, rest = parser.parse_known_args(arguments)
    if "--worker" in rest or is_on(rest, "worker") or is_on(rest, "mode-worker"):
        _follow_master(parsed)
    _hear(parser, parsed, rest)
    if (parsed.host is None) == (parsed.target is None):
        raise UsageError("give either --host URL or --target NAME (see `kvswarm targets`)")
    _refuse_late_file(rest)
    if parsed.host is not None and parsed.model:
        rest = [*rest, "--model", parsed.model]
    targets = () if parsed.target is None else target_names(parsed.target)
    run = RunArguments(
        file=file,
        host=parsed.host,
        targets=targets,
        target_arguments=target_arguments(parsed),
        out=expanded(parsed.out) if parsed.out else _default_out("+".join(targets) or "host"),
        rest=tuple(rest),
    )
    _refuse_for_targets(command, run)
    _require_files(run.rest)
    return run


def run_again(recorded: Sequence[str], target: str, kv_tokens: int) -> list[str] | None:
    """The command of a recorded run on another engine, without what belongs to its own; None where
    it was no `kvswarm run`. Raises UsageError for one that cannot be read."""
    if list(recorded[1:2]) != ["run"]:
        return None
    file, words = first_word(recorded[2:])
    parser = run_parser("run")
    parsed, rest = parser.parse_known_args(words)
    ordering = [each.name for each in fields(ContextSchedulerSettings)]
    kept = [*OF_ANY_ENGINE, *(ordering if target.endswith("-context") else ())]
    told = {name.replace("_", "-"): getattr(parsed, name) for name in kept}
    own = as_words({name: value for name, value in told.items() if value is not None}, parser)
    engine = ["--target", target, "--kv-tokens", str(kv_tokens)]
    return ["kvswarm", "run", *filter(None, [file]), *own, *rest, *engine]


def is_given(words: Sequence[str], *flags: str) -> bool:
    """Whether one of these options is there: `--users 3`, `--users=3`, `-u 3` or `-u3`."""
    return any(
        word.partition("=")[0] in flags
        or (not word.startswith("--") and len(word) > 2 and word[:2] in flags)
        for word in words
    )


def refuse_engine_options(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace, *allowed: str
) -> None:
    """Raise UsageError for an option that only concerns an engine of ours, but the `allowed`."""
    for group in parser._action_groups:
        for action in group._group_actions if group.title in ENGINE_GROUPS else ():
            if getattr(parsed, action.dest) is not None and action.dest not in allowed:
                hint = "leave out --host and give a --target"
                if parsed.host == AS_THE_MASTER:
                    hint = "give it to the master, not to a --worker"
                flag = action.option_strings[0]
                raise UsageError(f"{flag} is for an engine that kvswarm starts: {hint}")


def _hear(parser: argparse.ArgumentParser, parsed: argparse.Namespace, rest: Sequence[str]) -> None:
    """Fill in what the command line leaves open, from the environment and from files.

    Whoever says which host or target it is decides that; what is said of engines less strongly
    than of a host is for other runs. Raises UsageError.
    """
    for source, settings in (("", {}), *settings_of(rest)):
        try:
            said = parser.parse_args(as_words(settings, parser))
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from None
        has_target = parsed.target is not None
        for name, value in vars(said).items():
            if getattr(parsed, name) is None and not (name == "host" and has_target):
                setattr(parsed, name, value)
        if parsed.host is not None:
            refuse_engine_options(parser, parsed)
            parsed.out = parsed.out or setting(rest, "out")
            return


def _follow_master(parsed: argparse.Namespace) -> None:
    """A worker loads what its master says. Raises UsageError for a target of its own."""
    if parsed.target is not None:
        raise UsageError("--worker loads what its master loads: give --target to the master")
    parsed.host = parsed.host or AS_THE_MASTER


def _refuse_for_targets(command: str, run: RunArguments) -> None:
    """Raise UsageError for what does not go with so many targets, which may be none."""
    if len(run.targets) < 2:
        return
    if command == "ui":
        raise UsageError("`kvswarm ui` loads one target: compare several with `kvswarm run`")
    flags = {argument.partition("=")[0] for argument in run.rest}
    for flag in SHARED_FILES:
        if flag in flags:
            raise UsageError(f"{flag} would be overwritten by each target: see the run directories")


def _require_files(rest: Sequence[str]) -> None:
    """Raise UsageError for a file that Locust could not write: it would say so at the end."""
    for flag, ending in SHARED_FILES.items():
        if name := value_of(rest, flag.removeprefix("--")):
            if flag != "--csv":
                require_file(Path(name), flag)
            require_file(Path(f"{name}{ending}"), flag)


def _refuse_late_file(rest: list[str]) -> None:
    """Locust would take a late FILE for the name of a user class."""
    for before, argument in pairwise(["", *rest]):
        if argument.endswith(".py") and not before.startswith("-"):
            raise UsageError(f"{argument} comes too late: the locustfile is the first argument")


def _default_out(name: str) -> Path:
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return Path("runs") / f"{stamp}.{int(now % 1 * 1000):03d}-{name}"


def find_locustfile(name: str) -> Path:
    """The file at a path, or the shipped one of that name; UsageError lists those there are."""
    path = Path(name)
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise UsageError(f"{name} cannot be read ({reason_of(error)}): give another") from None
    found = find_spec("locustfiles")
    folder = Path(found.origin or "").parent if found else Path()
    shipped = folder / f"{name.removesuffix('.py')}.py"
    if shipped.parent.is_dir() and "/" not in name and shipped.is_file():
        return shipped
    names = ", ".join(sorted(p.stem for p in shipped.parent.glob("[a-z]*.py")))
    raise UsageError(f"no locustfile {name!r}: give a path, or one of the shipped: {names}")
