"""What the user chooses about the context scheduler, vLLM's scheduler with our waiting queue."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.errors import UsageError

POLICIES = ("fcfs", "reuse", "lpm", "prefix-group")
KEYS = ("auto", "label", "prefix")


@dataclass(frozen=True, slots=True)
class ContextSchedulerSettings:
    """Each is as the option of its name; None leaves it to the plugin, which knows the defaults.

    `quantum` and `max_overtakes` count requests, `window` groups of requests, `min_kv_usage` is a
    share of the cache from 0 to 1. Raises UsageError for what cannot be.
    """

    policy: str | None = None
    key: str | None = None
    quantum: int | None = None
    max_overtakes: int | None = None
    max_wait_s: float | None = None
    window: int | None = None
    min_kv_usage: float | None = None

    def __post_init__(self) -> None:
        self._require_choice("policy", POLICIES)
        self._require_choice("key", KEYS)
        self._require_range("quantum", 1)
        self._require_range("max_overtakes", 0)
        self._require_range("window", 1)
        self._require_range("min_kv_usage", 0, 1)
        if self.max_wait_s is not None and not 0 < self.max_wait_s < math.inf:
            raise UsageError(f"--max-wait-s {self.max_wait_s:g} must be more than 0 and finite")

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were given, as they are typed."""
        return tuple(map(_option, self._given()))

    @property
    def json(self) -> str:
        """The plugin's settings as a JSON object on one line.

        They are strict: an engine that cannot honour them must not start, as a run on it would
        measure something else.
        """
        return json.dumps({**self._given(), "strict": True}, separators=(",", ":"))

    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def _require_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value is not None and value not in choices:
            raise UsageError(f"{_option(name)} {value!r} is unknown: choose {', '.join(choices)}")

    def _require_range(self, name: str, least: float, most: float = math.inf) -> None:
        value = getattr(self, name)
        if value is None or (math.isfinite(value) and least <= value <= most):
            return
        bound = f"from {least:g} to {most:g}" if most < math.inf else f"from {least:g} on"
        raise UsageError(f"{_option(name)} {value:g} is out of range: give a number {bound}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
