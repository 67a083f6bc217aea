"""Options that `kvswarm run` keeps to itself, and what Locust's parser has to know of them.

They may stand in Locust's configuration files beside its own, and be what a mistyped one meant.
"""

import argparse
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from locust import events
from locust.util.timespan import parse_timespan

from rag_store.cli.output import complaint
from rag_store.cli.suggestion import suggested

LONGEST_RUN_S = 1e9


class _OthersSettings:
    """A reader of configuration files that leaves out what is not for this parser."""

    def __init__(self, reader: Any, parser: Any, ours: Collection[str]) -> None:
        self._reader = reader
        self._parser = parser
        self._ours = ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def parse(self, stream: Any) -> Mapping[str, Any]:
        """As the reader's own."""
        own = self._parser._option_string_actions
        hidden = {flag for flag in self._ours if flag not in own}
        read = self._reader.parse(stream)
        return {key: read[key] for key in read if f"--{key.lstrip('-')}" not in hidden}


def no_users(file: str) -> str:
    """What is said of a locustfile that has nothing of ours."""
    return f"{file} has no users of kvswarm: run it with `locust -f {file}`"


def _file() -> str:
    return sys.argv[sys.argv.index("-f") + 1] if "-f" in sys.argv else "the locustfile"


def leave_out(ours: Collection[str]) -> None:
    """Have Locust's parsers from now on pass over these flags in files, and suggest them."""

    def prepare(parser: Any, **_: Any) -> None:
        def error(message: str) -> None:
            own = parser._option_string_actions
            # Whoever imports kvswarm brings the option that we always give.
            said = suggested(message, [*own, *ours]) if "--out" in own else no_users(_file())
            parser.exit(2, f"{complaint(said)}\n")

        parser._config_file_parser = _OthersSettings(parser._config_file_parser, parser, ours)
        parser.error = error

    events.init_command_line_parser.add_listener(prepare)


def bound_run_time(parser: Any) -> None:
    """Have Locust's parser refuse a `--run-time` for which it would never end, or fail."""

    def seconds(text: str) -> int:
        with suppress(ValueError, OverflowError):
            if 0 < (found := parse_timespan(text)) <= LONGEST_RUN_S:
                return found
        said = f"{text!r} is no run time: give 20, 20s, 3m or 1h20m, none for no end"
        raise argparse.ArgumentTypeError(said)

    for action in parser._actions:
        if action.dest == "run_time":
            action.type = seconds
