"""What Locust's configuration files and environment variables say of options that are ours.

Locust reads its own there; which engine to start, which host to load and where to keep the run has
to be known before Locust runs.
"""

import argparse
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.scratch import expanded, without_device

CONFIG_FILES = ("~/.locust.conf", "locust.conf", "pyproject.toml")
"""Where Locust looks, the last one first; `--config` comes before them."""
ENVIRONMENT = "the environment"
Settings = Mapping[str, Any]


def settings_of(words: Sequence[str]) -> Iterator[tuple[str, Settings]]:
    """Sources and what they say by option, without dashes: the environment, then the files.

    Raises UsageError for a file that cannot be read.
    """
    prefix = "LOCUST_"
    yield (
        ENVIRONMENT,
        {
            name.removeprefix(prefix).lower().replace("_", "-"): value
            for name, value in os.environ.items()
            if name.startswith(prefix)
        },
    )
    named = [after for before, after in pairwise([*words, ""]) if before == "--config" and after]
    named += [word.partition("=")[2] for word in words if word.startswith("--config=")]
    for name in (*reversed(named), *reversed(CONFIG_FILES)):
        path = expanded(name)
        if name in named or path.is_file():
            yield name, _settings(path)


def setting(words: Sequence[str], name: str) -> str | None:
    """What the first source that knows the option says of it."""
    return next((str(each[name]) for _, each in settings_of(words) if each.get(name)), None)


def value_of(words: Sequence[str], name: str, short: str = "") -> str | None:
    """What the command line says last of an option, else `setting`."""
    given = setting(words, name)
    for word, after in pairwise([*words, ""]):
        if word == f"--{name}" or (short and word == short):
            given = after
        elif word.startswith(f"--{name}="):
            given = word.partition("=")[2]
        elif short and word.startswith(short):
            given = word[len(short) :]
    return given


def is_on(words: Sequence[str], name: str) -> bool:
    """Whether a flag is set."""
    return (setting(words, name) or "").lower() in ("true", "1", "yes")


def as_words(settings: Settings, parser: argparse.ArgumentParser) -> list[str]:
    """Those of them that a parser knows, as a command line would have them."""
    known = {flag for action in parser._actions for flag in action.option_strings}
    return [
        f"--{name}={value}"
        for name, values in settings.items()
        if f"--{name}" in known and name != "help"
        for value in (values if isinstance(values, list) else [values])
    ]


def _settings(path: Path) -> Settings:
    try:
        text = without_device(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--config {path} cannot be read: {reason}") from None
    read = _toml(text)
    if read is None:
        read = {} if path.suffix == ".toml" else _lines(text)
    return {key.lstrip("-"): value for key, value in read.items()}


def _toml(text: str) -> dict[str, Any] | None:
    """Locust's table; None where there is none."""
    try:
        found = tomllib.loads(text).get("tool", {}).get("locust")
    except (tomllib.TOMLDecodeError, AttributeError):
        return None
    return found if isinstance(found, dict) else None


def _lines(text: str) -> dict[str, Any]:
    import configargparse  # Locust's own reader of them, and a run without such a file starts fast

    try:
        return dict(configargparse.DefaultConfigFileParser().parse(text.splitlines()))
    except configargparse.ConfigFileParserException:
        return {}  # Locust will say what is wrong with it
