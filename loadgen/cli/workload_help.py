"""The options that kvswarm adds to Locust's parser, as help text."""

import argparse
from typing import Any

from loadgen.swarm.options.flags import add_options


class _PlainParser(argparse.ArgumentParser):
    def add_argument(self, *flags: Any, **settings: Any) -> Any:
        if flags[0] in ("--model", "--out"):
            return None  # `kvswarm run` has its own words for these
        settings.pop("env_var", None)
        settings.pop("include_in_web_ui", None)
        return super().add_argument(*flags, **settings)


def print_workload_options() -> None:
    """Print the options without a usage line."""
    parser = _PlainParser(add_help=False, usage=argparse.SUPPRESS)
    add_options(parser)
    print(parser.format_help().strip())
