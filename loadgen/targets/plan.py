"""From a target and the user's settings to command lines, environments and URLs. Nothing runs."""

import json
import secrets
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from loadgen.errors import UsageError
from loadgen.scratch import PREFIX, without_device
from loadgen.targets.catalog import Addition, Role, ServiceSpec, TargetSpec, fill, ports_in
from loadgen.targets.hardware import Platform, has_bfloat16_kernels
from loadgen.targets.settings import (
    LOOPBACK,
    ROUTED_BY_EVENTS,
    ROUTED_BY_TOKENS,
    USUAL_ROUTER,
    TargetSettings,
    is_quantized,
)
from rag_store.extras import install_command

RESERVED_BLOCKS = 1  # vLLM's block pool keeps one null block for itself
MIN_USABLE_BLOCKS = 2
BYTES_PER_GB = 2**30  # LMCache's GB, which is a GiB
Ports = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """`usable_blocks` of `block_size` tokens each, all of them free for requests."""

    block_size: int
    usable_blocks: int

    @classmethod
    def of_tokens(cls, kv_tokens: int, block_size: int) -> Self:
        """The smallest capacity of at least `kv_tokens`; UsageError below two blocks."""
        if block_size < 1:
            raise UsageError(f"a KV block of {block_size} tokens is not possible")
        usable_blocks = -(-kv_tokens // block_size)
        if usable_blocks < MIN_USABLE_BLOCKS:
            least = block_size * (MIN_USABLE_BLOCKS - 1) + 1
            raise UsageError(
                f"--kv-tokens {kv_tokens} is less than two KV blocks of {block_size} tokens:"
                f" give at least {least}"
            )
        return cls(block_size, usable_blocks)

    @property
    def blocks(self) -> int:
        """What the engine is told to allocate: the usable blocks and its own."""
        return self.usable_blocks + RESERVED_BLOCKS

    @property
    def usable_tokens(self) -> int:
        """Tokens of all requests together that fit."""
        return self.usable_blocks * self.block_size

    def max_model_len(self, window_tokens: int | None) -> int:
        """The longest request in tokens, reply included, that model and cache both allow."""
        return min(self.usable_tokens, window_tokens or self.usable_tokens)


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """One program as it will be started; `env` is what we set on top of our own.

    `scratch_dir`, and `l2_dir` for cached KV, do not exist yet: they are made empty before each
    start and removed after the end.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str
    ready_url: str
    metrics_url: str | None
    reset_url: str | None = None
    empty_metric: str | None = None
    scratch_dir: Path | None = None
    l2_dir: Path | None = None
    role: Role = "service"
    counters: str | None = None
    series: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    """What requests call its model."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that live as long as the service."""
        return tuple(path for path in (self.scratch_dir, self.l2_dir) if path is not None)


def plan_capacity(
    spec: TargetSpec, settings: TargetSettings, platform: Platform
) -> KvCapacity | None:
    """The cache `--kv-tokens` asks for, None where it was not given."""
    if settings.kv_tokens is None:
        return None
    block_size = spec.engine.block_size.get(platform)
    if block_size is None:
        raise UsageError(
            f"target {spec.name} takes no --kv-tokens: its engine {spec.engine.name} names no"
            f" block_size.{platform} in the catalog"
        )
    return KvCapacity.of_tokens(settings.kv_tokens, block_size)


def uses(spec: TargetSpec, placeholder: str) -> bool:
    """Whether a value, such as `l1_gb`, means anything to the target."""
    parts = [spec.extra, *spec.when.values()]
    for service in spec.services:
        parts += [Addition(service.argv, service.env), *service.when.values()]
    return any(part.names(placeholder) for part in parts)


def require_profile(settings: TargetSettings) -> None:
    """Raise UsageError for a codec's profile that is none, or not of the shape of a model that is
    there."""
    try:
        from kv_reading import KvError
        from kv_reading.kv import KvShape, read_shape
        from kv_tiers.codecs import CacheGenProfile
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--kv-codec {settings.kv_codec} needs {error.name}: {install_command('codecs')}"
        ) from error
    try:
        profile = CacheGenProfile.read(without_device(Path(settings.kv_profile)))
        shape = read_shape(settings.model_dir) if settings.model_dir else None
    except (OSError, ValueError, KvError) as error:
        raise UsageError(f"--kv-codec: {error}") from error
    layers, _, channels = profile.mean.shape
    if shape not in (None, KvShape(layers, profile.heads, channels // profile.heads)):
        raise UsageError(
            f"--kv-codec: {settings.kv_profile} is the profile of another model than"
            f" {settings.model}: make one with `kvswarm kv codecs --model DIR`"
        )


def uses_l1(spec: TargetSpec) -> bool:
    """Whether there is memory behind the engine's cache, of a size that can be chosen."""
    return uses(spec, "l1_gb") or uses(spec, "l1_bytes")


def port_names(spec: TargetSpec, settings: TargetSettings, platform: Platform) -> list[str]:
    """The ports the target needs, as `service.port`; the one that requests go to is the last."""
    names: set[str] = set()
    for service in spec.services:
        parts = _parts(service, spec, settings, platform)
        texts = [text for part in parts for text in part.texts]
        names |= ports_in(texts, service.name) | {f"{service.name}.port"}
    foreign = {n for n in names if n.rpartition(".")[0] not in {s.name for s in spec.services}}
    if foreign:
        raise UsageError(
            f"target {spec.name}: {{{min(foreign)}}} names a service that it does not start"
        )
    front_port = f"{spec.front.name}.port"
    return [*sorted(names - {front_port}), front_port]


def plan_services(
    spec: TargetSpec, settings: TargetSettings, platform: Platform, ports: Ports
) -> list[ServicePlan]:
    """What to start, in order. Raises UsageError where a placeholder has no value."""
    values = _values(spec, settings, platform, ports)
    return [
        _plan(service, _parts(service, spec, settings, platform), values, settings, spec, platform)
        for service in spec.services
    ]


def _values(
    spec: TargetSpec, settings: TargetSettings, platform: Platform, ports: Ports
) -> dict[str, str]:
    capacity = plan_capacity(spec, settings, platform)
    window = settings.window_tokens
    values = {
        "python": sys.executable,
        "model": str(settings.model_dir or settings.model),
        "served_model_name": settings.name,
        # vLLM's "auto" is the smaller of the model's window and what fits in its cache.
        "max_model_len": str(capacity.max_model_len(window)) if capacity and window else "auto",
        "l1_gb": f"{settings.l1_gb:g}",
        "l1_bytes": str(round(settings.l1_gb * BYTES_PER_GB)),
        "l2_gb": f"{settings.l2_gb:g}",
        "kv_codec": settings.kv_codec.partition(":")[0],
        "kv_profile": json.dumps(settings.kv_profile)[1:-1],
        "context_scheduler": settings.context_scheduler.json,
        "engine_urls": ",".join(f"http://{LOOPBACK}:{port}" for port in _ports_of(spec, ports)),
        "event_ports": ",".join(_ports_of(spec, ports, "events_port")),
        "router": settings.router or USUAL_ROUTER,
        **{name: str(port) for name, port in ports.items()},
    }
    if platform in spec.engine.block_size:
        values["block_size"] = str(spec.engine.block_size[platform])
    if capacity is not None:
        values["blocks"] = str(capacity.blocks)
    return values


def _ports_of(spec: TargetSpec, ports: Ports, kind: str = "port") -> list[str]:
    """Those of the engines."""
    names = (f"{each.name}.{kind}" for each in spec.services if each.role == "engine")
    return [str(ports[name]) for name in names if name in ports]


def _parts(
    service: ServiceSpec, spec: TargetSpec, settings: TargetSettings, platform: Platform
) -> list[Addition]:
    """The command line in its parts; of an option given twice, programs take the last."""
    router = (settings.router or USUAL_ROUTER) if spec.of_role("router") else None
    conditions = {
        "cpu": platform == "cpu",
        "gpu": platform == "gpu",
        "cpu_without_bfloat16": platform == "cpu"
        and (settings.is_exact or not has_bfloat16_kernels())
        and not is_quantized(settings.model),
        "kv_tokens": settings.kv_tokens is not None,
        "local_model": settings.model_dir is not None,
        "loopback": settings.is_loopback or service is not spec.front,
        "routed_by_tokens": router in ROUTED_BY_TOKENS,
        "routed_by_events": router in ROUTED_BY_EVENTS,
    }
    parts = [Addition(service.argv, service.env)]
    parts += [addition for name, addition in service.when.items() if conditions[name]]
    if service.role == "engine":
        parts.append(spec.extra)
        parts += [addition for name, addition in spec.when.items() if conditions[name]]
    return parts


def _plan(
    service: ServiceSpec,
    parts: list[Addition],
    values: Mapping[str, str],
    settings: TargetSettings,
    spec: TargetSpec,
    platform: Platform,
) -> ServicePlan:
    is_front = service is spec.front
    scratch_dir = _fresh_path() if any(part.names("scratch_dir") for part in parts) else None
    l2_dir = _fresh_path(settings.l2_dir) if any(part.names("l2_dir") for part in parts) else None
    values = {
        **values,
        "host": settings.host if is_front else LOOPBACK,
        "scratch_dir": str(scratch_dir),
        "l2_dir": json.dumps(str(l2_dir), ensure_ascii=False)[1:-1],
        "routes_key": secrets.token_urlsafe(24),
    }
    try:
        argv = [fill(arg, service.name, values) for part in parts for arg in part.args]
        env = {k: fill(v, service.name, values) for part in parts for k, v in part.env.items()}
        model = fill(service.model, service.name, values)
    except KeyError as error:
        name = error.args[0]
        needs = "has a value only with --kv-tokens"
        if name == "block_size":
            needs = f"needs block_size.{platform} of its engine in the catalog"
        raise UsageError(f"target {spec.name}: {{{name}}} {needs}") from None
    host = settings.own_host if is_front else LOOPBACK
    url = f"http://{host}:{values[f'{service.name}.port']}"
    return ServicePlan(
        name=service.name,
        argv=(*argv, *(settings.args if service.role == "engine" else ())),
        env=env,
        url=url,
        ready_url=url + service.ready,
        metrics_url=url + service.metrics if service.metrics else None,
        reset_url=url + service.reset if service.reset else None,
        empty_metric=service.empty_metric,
        scratch_dir=scratch_dir,
        l2_dir=l2_dir,
        role=service.role or "service",
        counters=service.counters,
        series=service.series,
        model=model,
    )


def _fresh_path(place: Path | None = None) -> Path:
    """A path at which nobody else makes a file: the name cannot be guessed."""
    return (place or Path(tempfile.gettempdir())) / f"{PREFIX}{secrets.token_hex(8)}"
