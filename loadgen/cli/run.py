"""`kvswarm run` and `kvswarm ui`: Locust in this process, or below one that runs the engine."""

import argparse
from typing import Any

from loadgen.launch.arguments import RunArguments, parse_run, run_parser
from loadgen.launch.configured import value_of
from loadgen.launch.locust_command import run_locust
from loadgen.launch.terminal import tell
from loadgen.targets.hardware import require_free
from loadgen.targets.settings import LOOPBACK

WEB_PORT = "8089"
"""Locust's own default."""


def run_command(command: str, arguments: list[str]) -> int:
    """Run a swarm; returns the exit code of the run."""
    if "-h" in arguments or "--help" in arguments:
        return _help(command)
    run = parse_run(command, arguments)
    if command == "ui":
        require_page_port(run)
    if not run.targets:
        return run_locust(command, run)
    from loadgen.launch.supervised import run_supervised

    return run_supervised(command, run)


def _help(command: str) -> int:
    run_parser(command).print_help()
    tell("\nworkload options (also in Locust's configuration file and environment):")
    from loadgen.swarm.options.flags import add_options  # a run must start fast

    parser = _PlainParser(add_help=False, usage=argparse.SUPPRESS)
    add_options(parser)
    tell(parser.format_help().strip())
    tell("\nAny other option goes to Locust: -u USERS, -r SPAWN_RATE, -t TIME, --processes N …")
    return 0


def require_page_port(run: RunArguments) -> None:
    """Raise UsageError where Locust's page cannot have its port."""
    port = value_of(run.rest, "web-port", "-P") or WEB_PORT
    host = value_of(run.rest, "web-host") or LOOPBACK
    if port.isdecimal() and int(port):
        require_free("0.0.0.0" if host == "*" else host, int(port), "--web-host or --web-port")


class _PlainParser(argparse.ArgumentParser):
    def add_argument(self, *flags: Any, **settings: Any) -> Any:
        if flags[0] in ("--model", "--out"):
            return None  # `kvswarm run` has its own words for these
        settings.pop("env_var", None)
        settings.pop("include_in_web_ui", None)
        return super().add_argument(*flags, **settings)
