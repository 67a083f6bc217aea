"""`kvswarm why`: where each computed prompt token of a run could have been a hit."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.launch.arguments import CommandParser
from loadgen.launch.terminal import tell

if TYPE_CHECKING:
    from loadgen.locality.causes import ComputedCauses


def why_command(arguments: list[str]) -> int:
    """Print the causes of what a run computed, and the cheapest cure. Raises UsageError."""
    parsed = _parser().parse_args(arguments)
    from loadgen.locality.causes import causes_of_run

    found = causes_of_run(parsed.run)
    if parsed.format == "json":
        content = {**asdict(found), "sentences": list(found.sentences())}
        print(json.dumps(content, indent=2))
        return 0
    tell("\n".join(_lines(found)))
    return 0


def _lines(found: "ComputedCauses") -> Iterator[str]:
    from loadgen.locality.causes import CAUSES

    yield (
        f"{found.computed:,} prompt tokens computed for {found.prompts:,} requests ({found.source})"
    )
    width = len(f"{found.computed:,}")
    for name, said in CAUSES.items():
        if tokens := found.tokens[name]:
            yield f"  {tokens:{width},}  {tokens / found.computed:4.0%}  {said}"
    if found.engine is not None and found.engine != found.computed:
        why = (
            "other requests, or failed ones, are in it"
            if found.engine > found.computed
            else "not all of it was asked, or its statistics began later"
        )
        yield f"the engine itself counted {found.engine:,}: {why}"
    yield from found.remarks
    yield from found.sentences()


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm why",
        description="Where each prompt token that a run computed could have been a hit of the"
        " prefix cache: first use, evicted, order, the end of a prompt; and the cheapest cure.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    return parser
