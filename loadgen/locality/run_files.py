"""The JSON files of a run directory, as far as a curve needs them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError

NOTHING: Mapping[str, Any] = {}


def read_description(run: Path) -> Mapping[str, Any]:
    """The run's `run.json`. Raises UsageError where there is none."""
    if not (run / "run.json").is_file():
        raise UsageError(f"no run at {run}: name a directory that `kvswarm run` has written")
    return read_object(run / "run.json")


def read_object(file: Path) -> Mapping[str, Any]:
    """A JSON object, an empty one where there is no such file. Raises UsageError."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no whole JSON file ({error}): restore it") from None
    if not isinstance(value, Mapping):
        raise UsageError(f"{file} holds no JSON object: restore it")
    return value


def mapping(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object below a name, an empty one where there is none."""
    found = content.get(name)
    return found if isinstance(found, Mapping) else NOTHING


def engine_argv(description: Mapping[str, Any]) -> list[str]:
    """The words of the command lines of all services that kvswarm started."""
    argv = mapping(mapping(description, "target"), "argv")
    return [str(word) for words in argv.values() for word in words]


def argument(argv: list[str], flag: str) -> str | None:
    """What stands behind a flag the last time it is given, None where it is not.

    Engines take the last one too.
    """
    found = None
    for word, after in zip(argv, [*argv[1:], None], strict=False):
        name, equals, value = word.partition("=")
        if name == flag and (equals or after is not None):
            found = value if equals else after
    return found
