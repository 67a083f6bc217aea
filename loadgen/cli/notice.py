"""Lines for whoever waits at a terminal; stdout is for results."""

import sys


def say(text: str) -> None:
    """One line on stderr, at once."""
    print(f"kvswarm: {text}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text of others, without what a terminal obeys; line ends stay."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)
