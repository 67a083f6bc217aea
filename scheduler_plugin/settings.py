"""What a user may choose about the order of waiting requests."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

Policy = Literal["fcfs", "reuse", "lpm", "prefix-group"]
Key = Literal["auto", "label", "prefix"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
KEYS: tuple[Key, ...] = get_args(Key)

SECTION = "context_scheduler"
"""The key of vLLM's `--additional-config` that holds our settings."""

VARIABLE = "CONTEXT_SCHEDULER_"
"""What an environment variable begins with that holds one of our settings."""

SWITCH = "CONTEXT_SCHEDULER"
"""The environment variable that switches the plugin on without a flag."""

TEXTS = frozenset({"policy", "key"})
"""Settings whose environment variable is taken as it stands; the others are read as JSON."""


UNASKED: Mapping[Policy, frozenset[str]] = {
    "fcfs": frozenset({"key", "quantum", "max_overtakes", "max_wait_s", "window", "min_kv_usage"}),
    "reuse": frozenset({"key", "quantum", "window"}),
    "lpm": frozenset(),
    "prefix-group": frozenset({"max_overtakes", "max_wait_s", "window"}),
}
"""Settings that a policy does not look at."""


class SettingsError(ValueError):
    """A setting that does not exist or cannot be; one sentence says which and what can."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How the next waiting request is chosen.

    `quantum` is the most requests of one context in a turn, `max_overtakes` and `max_wait_s` make
    the oldest request overdue, `window` is how many groups are looked at, and below `min_kv_usage`
    (0 to 1, the share of KV blocks in use) the order is first come, first served. `strict` refuses
    to start where the order cannot be kept. Raises SettingsError.
    """

    policy: Policy = "reuse"
    key: Key = "auto"
    quantum: int = 32
    max_overtakes: int = 64
    max_wait_s: float | None = None
    window: int = 16
    min_kv_usage: float = 0.0
    strict: bool = False

    def __post_init__(self) -> None:
        self._require("policy", self.policy in POLICIES, _one_of(POLICIES))
        self._require("key", self.key in KEYS, _one_of(KEYS))
        self._require_whole("quantum", 1)
        self._require_whole("max_overtakes", 0)
        self._require_whole("window", 1)
        wait, usage = self.max_wait_s, self.min_kv_usage
        is_wait = wait is None or (_is_number(wait) and wait > 0)
        self._require("max_wait_s", is_wait, "a number of seconds above 0, or null")
        is_share = _is_number(usage) and 0 <= usage <= 1
        self._require("min_kv_usage", is_share, "a number from 0 to 1")
        self._require("strict", isinstance(self.strict, bool), "true or false")

    @classmethod
    def read(cls, config: object, environment: Mapping[str, str]) -> "OrderSettings":
        """The settings of a server: its additional config over its environment over the defaults.

        `config` is vLLM's `additional_config`: a mapping, or an object of a platform's own, which
        may have our section as an attribute. Raises SettingsError.
        """
        chosen = {**_from_environment(environment), **_from_config(config)}
        return cls(**{name: _whole(value) for name, value in chosen.items()})

    def unasked(self) -> str | None:
        """A sentence on settings that were changed and that this policy does not look at."""
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        names = [name for name in changed if name in UNASKED[self.policy]]
        if not names:
            return None
        return f"policy {self.policy} does not look at {', '.join(names)}"

    def _require_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        self._require(name, is_whole, f"a whole number of at least {least}")

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            value = _shown(getattr(self, name))
            raise SettingsError(
                f"the context scheduler's setting {name} is {value}, but must be {allowed}"
            )


def is_on(environment: Mapping[str, str]) -> bool:
    """Whether the plugin is switched on by the environment. Raises SettingsError."""
    told = environment.get(SWITCH, "").lower()
    if told in ("1", "on", "true", "yes"):
        return True
    if told in ("", "0", "off", "false", "no"):
        return False
    raise SettingsError(f"{SWITCH} is {told!r}, but must be on or off")


NAMES = tuple(field.name for field in fields(OrderSettings))


def _from_config(config: object) -> dict[str, Any]:
    if isinstance(config, Mapping):
        _refuse_near_miss(config)
        section = config.get(SECTION, {})
    else:
        section = getattr(config, SECTION, {})
    if not isinstance(section, Mapping):
        raise SettingsError(
            f"{SECTION!r} in --additional-config is {_shown(section)}, but must be an object of"
            f' settings, such as {{"policy": "lpm"}}'
        )
    for name in section:
        if name not in NAMES:
            raise _unknown(f"{name!r}", f"in {SECTION!r} of --additional-config", NAMES)
    return dict(section)


def _refuse_near_miss(config: Mapping[Any, Any]) -> None:
    """Other keys of the additional config belong to others, but one so similar was meant for us."""
    for name in config:
        like_ours = get_close_matches(str(name).lower().replace("-", "_"), [SECTION], cutoff=0.85)
        if name != SECTION and like_ours:
            raise SettingsError(
                f"--additional-config has {name!r}: the context scheduler's settings are"
                f" under {SECTION!r}"
            )


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    variables = {f"{VARIABLE}{name.upper()}": name for name in NAMES}
    chosen: dict[str, Any] = {}
    for variable, text in environment.items():
        if variable not in variables:
            _refuse_misspelt(variable, tuple(variables))
            continue
        if not text:
            continue
        name = variables[variable]
        chosen[name] = text if name in TEXTS else _parsed(name, text)
    return chosen


def _refuse_misspelt(variable: str, known: tuple[str, ...]) -> None:
    """Others may share our beginning, as Kubernetes' own variables of a service of that name."""
    if variable.startswith(VARIABLE) and get_close_matches(variable, known, cutoff=0.9):
        raise _unknown(variable, "in the environment", known)


def _unknown(name: str, where: str, known: tuple[str, ...]) -> SettingsError:
    return SettingsError(
        f"the context scheduler has no setting {name} ({where}): choose from {', '.join(known)}"
    )


def _parsed(name: str, text: str) -> Any:
    """A value as JSON would have it; `1` and `0` also stand for true and false."""
    try:
        value = json.loads(text.lower())
    except ValueError:
        return text
    return bool(value) if name == "strict" and value in (0, 1) else value


def _whole(value: Any) -> Any:
    """The integer for a float such as 32.0, which templates make of 32; others as they are."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _one_of(choices: tuple[str, ...]) -> str:
    return f"one of {', '.join(choices)}"


def _shown(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
