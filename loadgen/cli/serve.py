"""`kvswarm targets` and `kvswarm serve NAME`."""

import argparse
import asyncio
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.launch.arguments import (
    CommandParser,
    add_target_options,
    target_arguments,
    target_names,
)
from loadgen.launch.target_run import build_demo_model, choose_targets, target_settings
from loadgen.launch.terminal import awaited, interruptible, say, tell
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import default_model_dir
from loadgen.targets.target import start_target
from loadgen.targets.trained_model import NAME, trained_model, trained_model_dir
from rag_store.cli.output import aligned


def targets_command(arguments: list[str]) -> int:
    """List the engines that can be started."""
    parser = CommandParser(
        prog="kvswarm targets", description="list the engines that can be started"
    )
    parser.add_argument("--targets", type=Path, help="a TOML file with targets of your own")
    catalog = load_catalog(parser.parse_args(arguments).targets)
    tell("\n".join(aligned((name, spec.description) for name, spec in catalog.items())))
    return 0


def serve_command(arguments: list[str]) -> int:
    """Start a target and keep it until Ctrl-C."""
    return asyncio.run(_serve(_serve_parser().parse_args(arguments)))


def _serve_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="kvswarm serve", description="run an engine until Ctrl-C")
    parser.add_argument("target", help="see `kvswarm targets`")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on (default: a free one)")
    parser.add_argument("--logs", type=Path, help="folder for the engines' logs")
    add_target_options(parser)
    return parser


async def _serve(parsed: argparse.Namespace) -> int:
    arguments = target_arguments(parsed)
    names = target_names(parsed.target)
    if len(names) > 1:
        raise UsageError(f"`kvswarm serve` runs one target, not {len(names)}: start it for each")
    (spec,) = choose_targets(names, arguments)
    settings = target_settings(arguments, parsed.bind, parsed.port)
    logs = parsed.logs or Path(tempfile.mkdtemp(prefix="kvswarm-serve-"))
    tell(f"starting {spec.name}, logs in {logs}")
    with interruptible() as interruption:
        starting = start_target(
            spec, settings, logs, lambda error: say(f"{error}; the other engines go on")
        )
        async with awaited(starting, spec.name, logs) as target:
            tell(f"{spec.name} serves {target.model} at {target.url} until Ctrl-C")
            if spec.body:
                tell(f"its requests need --extra-body '{json.dumps(dict(spec.body))}'")
            raise await target.wait_died()
    return interruption.exit_code


def model_command(arguments: list[str]) -> int:
    """Make a model in a directory, by default where kvswarm looks for it."""
    parsed = _model_parser().parse_args(arguments)
    if parsed.command == "trained":
        directory = parsed.directory or trained_model_dir()
        tell(f"{NAME} is in {trained_model(directory)}")
        return 0
    directory = parsed.directory or default_model_dir(parsed.size)
    build_demo_model(directory, parsed.size)
    tell(f"the demo model ({parsed.size}, random weights) is in {directory}")
    return 0


def _model_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="kvswarm model", description="make a model of ours")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="a Qwen2 model with random weights")
    build.add_argument("directory", nargs="?", type=Path, help="where (default: kvswarm's cache)")
    build.add_argument("--size", choices=("tiny", "small"), default="tiny", help="512x8 or 768x12")
    trained = commands.add_parser("trained", help=f"{NAME}, from a package")
    trained.add_argument("directory", nargs="?", type=Path, help="where (default: kvswarm's cache)")
    return parser


def version_command(arguments: list[str]) -> int:
    """Print the version."""
    print(f"kvswarm {version('kvswarm')}")
    return 0
