"""What an option that no parser knows was meant to be, in all of `kvswarm`."""

import difflib
from collections.abc import Iterable

UNKNOWN = "unrecognized arguments: "


def suggested(message: str, known: Iterable[str]) -> str:
    """A parser's message; where it is about an unknown option, with the one that was meant."""
    if not message.startswith(UNKNOWN):
        return message
    words = message.removeprefix(UNKNOWN).split()
    unknown = next((word for word in words if word.startswith("-")), None)
    meant = None if unknown is None else nearest(unknown, known)
    return f"{message}: did you mean {meant}?" if meant else message


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that differs by case, dashes, underscores, a few letters or its end."""
    flat = {_flat(name): name for name in known}
    name = _flat(word.partition("=")[0])
    longer = sorted(each for each in flat if len(name) > 2 and each.startswith(name))
    close = difflib.get_close_matches(name, flat, 1, 0.7)
    found = next((each for each in (name, *close, *longer) if each in flat), None)
    return None if found is None else flat[found]


def _flat(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
