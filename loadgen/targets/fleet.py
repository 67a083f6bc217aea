"""Several engines behind a router: which service is started how often, and which routers there are.

vLLM's router (`vllm-router`) needs packages of its own, and has an environment of its own beside
the packages of this one.
"""

import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.targets.catalog import ServiceSpec, TargetSpec
from loadgen.targets.own_routes import NAME_VARIABLE
from loadgen.targets.plan import uses
from loadgen.targets.settings import ROUTERS, USUAL_ROUTER, TargetSettings

USUAL_REPLICAS = 2
SBIN = "/usr/sbin:/usr/local/sbin"
"""Where servers are installed that are on nobody's path but root's."""
VLLM_ROUTER = "vllm-router==0.1.17"


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """An engine that has exited unasked; `reason` says how, as in `was ended by SIGKILL`.
    `at_perf_s` is of `perf_counter()`, which all processes of a Linux machine share."""

    engine: str
    at_perf_s: float
    reason: str


def fleet_of(spec: TargetSpec, settings: TargetSettings) -> TargetSpec:
    """With as many engines as are asked for, named and numbered; without a router as it is."""
    if spec.of_role("router") is None:
        return spec
    count, engine = settings.replicas or USUAL_REPLICAS, spec.engine
    engines = [_numbered(engine, number) for number in range(1, count + 1)]
    at = spec.services.index(engine)
    return replace(spec, services=(*spec.services[:at], *engines, *spec.services[at + 1 :]))


def _numbered(engine: ServiceSpec, number: int) -> ServiceSpec:
    name = f"{engine.name}-{number}"
    return replace(engine, name=name, env={**engine.env, NAME_VARIABLE: name})


def require_router(spec: TargetSpec, settings: TargetSettings) -> None:
    """Raise UsageError where the router that is asked for is none of ours, or not installed."""
    if not uses(spec, "router"):
        return
    policy = settings.router or USUAL_ROUTER
    if policy not in ROUTERS:
        raise UsageError(f"unknown --router {policy!r}: choose one of {', '.join(ROUTERS)}")
    if router_program(policy) is None:
        raise UsageError(
            f"target {spec.name} with --router {policy} needs {ROUTERS[policy]}: {_hint(policy)}"
        )


def router_program(policy: str) -> Path | None:
    """The executable of a policy's router, None where it is not installed."""
    program = ROUTERS[policy]
    own = _environment() / "bin" / program
    found = str(own) if own.exists() else shutil.which(program) or shutil.which(program, path=SBIN)
    return Path(found) if found else None


def _environment() -> Path:
    return Path(sys.prefix) / "envs" / "vllm-router"


def _hint(policy: str) -> str:
    if ROUTERS[policy] == "haproxy":
        return "install your system's package, as by `apt-get install haproxy`"
    own = _environment()
    return (
        f"`{sys.executable} -m venv {own}` and `{own}/bin/pip install {VLLM_ROUTER}`,"
        " as it must not share an environment with vLLM"
    )
