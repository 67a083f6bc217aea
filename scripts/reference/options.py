"""options.md: what each command's own parser says."""

import argparse
import re
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from scripts.reference.text import Row, bracketed, code, listing, page

COMMANDS = (
    *("run", "ui", "ask", "demo", "serve", "kv record", "kv extract", "kv link", "kv serve"),
    "kv codecs",
    *(
        "compare",
        "noise",
        "report",
        "sweep",
        "saturate",
        "study",
        "study network",
        "study task4",
        "curve",
        "tiers",
        "why",
    ),
    *("calibrate", "simulate", "advise"),
    *("policies", "policies attention", "policies train-gqa", "ladder"),
    *("model build", "model trained"),
    *("rag index", "rag serve", "rag label", "rag explain", "rag eval", "rag fit-threshold"),
)


def parsers_of(command: str) -> list[argparse.ArgumentParser]:
    """The parsers that a command's `--help` prints."""
    from loadgen.cli.main import main
    from loadgen.cli.run import _PlainParser
    from loadgen.swarm.options.flags import add_options

    found: list[argparse.ArgumentParser] = []
    noted = patch.object(argparse.ArgumentParser, "print_help", lambda self, *_: found.append(self))
    with noted, redirect_stdout(StringIO()), suppress(SystemExit):
        main([*command.split(), "--help"])
    if command == "run":
        locust = _PlainParser(add_help=False)
        add_options(locust)
        found.append(locust)
    assert found, f"kvswarm {command} --help prints no parser"
    return found


def option_row(action: argparse.Action, parser: argparse.ArgumentParser) -> Row:
    """Flags, default and meaning."""
    flags = ", ".join(map(code, action.option_strings)) or code(action.metavar or action.dest)
    said = str(parser._get_formatter()._expand_help(action)) if action.help else ""
    given = action.default if isinstance(action.default, (int, float, str, Path)) else ""
    shown = "" if isinstance(given, bool) or given == argparse.SUPPRESS else str(given)
    if default := re.search(r" ?\(?default: ([^()]*)\)?$", said):
        word = "" if default[1] in ("None", "False") else default[1]
        said, shown = said[: default.start()], shown or word
    shown = re.sub(r"\d{8}-\d{6}", "TIME", shown)
    choices = [str(each) for each in action.choices or ()]
    first = re.match(r"[\w-]+", said)
    if first and first[0] in ("vllm", *choices):
        said = f"{code(first[0])}{said[first.end() :]}"  # a name, which has no capital letter
    if all(each in said for each in choices):
        return flags, shown, said
    return flags, shown, f"{said}{': ' if said else ''}{', '.join(map(code, choices))}"


def options() -> str:
    """Each option once, at the first command that has it."""
    parts, seen = list[str](), dict[Row, int]()
    for command in COMMANDS:
        rows = [
            option_row(action, parser)
            for parser in parsers_of(command)
            for action in parser._actions
            if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
        ]
        new = [row for row in rows if row not in seen]
        known = sorted((seen[row], row[0]) for row in rows if row in seen)
        seen |= {row: len(seen) + at for at, row in enumerate(new)}
        parts.append(f"## kvswarm {command}")
        if new:
            parts.append(listing((bracketed(name, given), said) for name, given, said in new))
        if known:
            parts.append(f"As above: {', '.join(spans(known))}.")
    return page(
        "Options",
        "Each option stands once, with its default in brackets, at the first command that has it."
        " `run` and `ui` also take any option of Locust, as `-u USERS`, `-r RATE` and `-t TIME`.",
        *parts,
    )


def spans(known: list[tuple[int, str]]) -> list[str]:
    """Names, of four and more that follow each other the first and the last."""
    found, start = list[str](), 0
    for at in range(1, len(known) + 1):
        if at < len(known) and known[at][0] == known[at - 1][0] + 1:
            continue
        names = [name for _, name in known[start:at]]
        found += names if len(names) < 4 else [f"{names[0]} to {names[-1]}"]
        start = at
    return found
