"""`kvswarm model build DIR`."""

import argparse
from pathlib import Path

from loadgen.cli.arguments import Parser
from loadgen.cli.demo_model import build_demo_model
from loadgen.targets.demo_model import default_model_dir, is_complete


def model_command(arguments: list[str]) -> int:
    """Make the demo model in a directory, by default where kvswarm looks for it."""
    parsed = _parser().parse_args(arguments)
    directory = parsed.directory or default_model_dir(parsed.size)
    if is_complete(directory):
        print(f"{directory} already holds a demo model")
        return 0
    build_demo_model(directory, parsed.size)
    print(f"demo model ({parsed.size}, random weights) written to {directory}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kvswarm model", description="a Qwen2 model with random weights")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="make the model")
    build.add_argument("directory", nargs="?", type=Path, help="where (default: kvswarm's cache)")
    build.add_argument("--size", choices=("tiny", "small"), default="tiny", help="512x8 or 768x12")
    return parser
