"""A TOML table that is read key by key; whatever is wrong is said with file, table and key."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from loadgen.errors import UsageError

T = TypeVar("T", bound=str)
ROUTE = re.compile(r"/[!-~]*")


@dataclass(frozen=True, slots=True)
class TomlTable:
    """`name` is the dotted path inside `file`, empty for the root."""

    values: Mapping[str, Any]
    file: str
    name: str

    def error(self, key: str, problem: str) -> UsageError:
        """The error to raise about one key."""
        table = f" [{self.name}]" if self.name else ""
        return UsageError(f"{self.file}{table} {key}: {problem}")

    def allow(self, *keys: str) -> None:
        """Refuse every other key."""
        for key in self.values:
            if key not in keys:
                raise self.error(key, f"unknown key, choose one of {', '.join(keys)}")

    def text(self, key: str) -> str | None:
        """A string, None when absent."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.error(key, f"must be a string with something in it, not {value!r}")
        return value

    def choice(self, key: str, choices: tuple[T, ...]) -> T | None:
        """One of these strings, None when absent."""
        value = self.text(key)
        if value is not None and value not in choices:
            known = ", ".join(choices)
            raise self.error(key, f"unknown {key} {value!r}, choose one of {known}")
        return next((each for each in choices if each == value), None)

    def required_text(self, key: str) -> str:
        """A string that must be there."""
        value = self.text(key)
        if value is None:
            raise self.error(key, "is missing, give a string")
        return value

    def route(self, key: str) -> str | None:
        """A path on a service's URL, None when absent."""
        path = self.text(key)
        if path is not None and not ROUTE.fullmatch(path):
            raise self.error(key, f"must be a path such as /health, not {path!r}")
        return path

    def require_json(self) -> None:
        """Refuse what JSON has not: dates, numbers that are not finite or too large."""
        for key, value in self.values.items():
            try:
                orjson.dumps(json.loads(json.dumps(value, allow_nan=False)))
            except (TypeError, ValueError) as error:
                problem = f"cannot be sent ({error}), give a string or a finite number"
                raise self.error(key, problem) from None

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty when absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(map(_is_text, value)):
            raise self.error(key, f"must be a list of strings, not {value!r}")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, str]:
        """A table of strings, empty when absent; numbers are taken as written."""
        table = self.table(key)
        for name, value in table.values.items():
            if not _is_text(value) and type(value) not in (int, float):
                raise table.error(name, f"must be a string, not {value!r}")
            if not name or set(name) & {"=", "\0"}:
                raise table.error(name, "is no name of a variable")
        return {name: str(value) for name, value in table.values.items()}

    def table(self, key: str) -> "TomlTable":
        """A table inside this one, empty when absent."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, not {value!r}")
        return TomlTable(value, self.file, f"{self.name}.{key}" if self.name else key)

    def tables(self, key: str) -> dict[str, "TomlTable"]:
        """The tables inside a table, by name."""
        outer = self.table(key)
        return {name: outer.table(name) for name in outer.values}


def _is_text(value: object) -> bool:
    """Whether a program can be given it."""
    return isinstance(value, str) and "\0" not in value
