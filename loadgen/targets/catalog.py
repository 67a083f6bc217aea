"""The catalog of targets: TOML tables read into frozen values.

`{name}` in a command line is a placeholder. Any other brace, as in JSON, stays as it is.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from loadgen.client.settings import our_fields
from loadgen.errors import UsageError
from loadgen.scratch import without_device
from loadgen.stats.prometheus import MetricSeries
from loadgen.stats.server_counters import CACHE_FIGURES, ENGINE_FIGURES
from loadgen.targets.toml_table import TomlTable

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)?)\}")
KNOWN = (
    *("python", "model", "served_model_name", "host", "max_model_len", "block_size", "blocks"),
    *("l1_gb", "l1_bytes", "l2_dir", "l2_gb", "kv_codec", "kv_profile", "context_scheduler"),
    *("scratch_dir", "routes_key", "engine_urls", "event_ports", "router"),
)
Role = Literal["engine", "cache", "router", "service"]
ROLES: tuple[Role, ...] = get_args(Role)
KvLife = Literal["request", "process"]
SERVED_NAME = "{served_model_name}"
CACHE_INFO = "cache_info"
_FIGURES = (*ENGINE_FIGURES, CACHE_INFO, *CACHE_FIGURES)
_USUAL_COUNTERS = {"engine": "vllm", "cache": "lmcache"}
PLATFORMS = ("cpu", "gpu")
CONDITIONS = (
    *(*PLATFORMS, "cpu_without_bfloat16", "kv_tokens", "local_model", "loopback"),
    *("routed_by_tokens", "routed_by_events"),
)


def is_port(name: str) -> bool:
    """Whether the placeholder stands for a port: `port`, `x_port` or `service.x_port`."""
    last = name.rpartition(".")[2]
    return last == "port" or last.endswith("_port")


def unknown(text: str) -> str | None:
    """The first placeholder in `text` that means nothing."""
    names = PLACEHOLDER.findall(text)
    return next((name for name in names if name not in KNOWN and not is_port(name)), None)


def ports_in(texts: Iterable[str], service: str) -> set[str]:
    """The ports a service's texts name, each as `service.port`."""
    names = {name for text in texts for name in PLACEHOLDER.findall(text) if is_port(name)}
    return {name if "." in name else f"{service}.{name}" for name in names}


def fill(text: str, service: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders replaced; KeyError names one that has no value."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return values[f"{service}.{name}" if is_port(name) and "." not in name else name]

    return PLACEHOLDER.sub(value, text)


@dataclass(frozen=True, slots=True)
class Addition:
    """Arguments and environment that come on top."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything in which a placeholder may stand."""
        return (*self.args, *self.env.values())

    def then(self, other: "Addition") -> "Addition":
        """With the other after it."""
        return Addition((*self.args, *other.args), {**self.env, **other.env})

    def names(self, placeholder: str) -> bool:
        """Whether the placeholder stands somewhere in it."""
        return any(f"{{{placeholder}}}" in text for text in self.texts)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One program: how it is started, asked and emptied. Paths are relative to its URL.

    `role` is None until it stands in a target. `counters` names the map of `series`: which series
    of its metrics is which figure.
    """

    name: str
    argv: tuple[str, ...]
    """The command as a list of strings; required."""
    env: Mapping[str, str]
    """Environment variables on top."""
    requires: tuple[str, ...]
    """Python modules that must be installed."""
    ready: str
    """The path that answers 200 once it is ready; required."""
    metrics: str | None
    """The path of its metrics, as Prometheus' text."""
    reset: str | None
    """The path that empties its cache; without one, a restart does."""
    empty_metric: str | None
    """The series that is 0 once the cache is empty."""
    role: Role | None
    """`engine`, `cache`, `router` or `service`."""
    counters: str | None
    """The `[counters.NAME]` table that its metrics are read by."""
    block_size: Mapping[str, int]
    """Tokens of a KV block on `cpu` and on `gpu`."""
    when: Mapping[str, Addition]
    """Tables with `args` and `env` that are added under a condition."""
    series: Mapping[str, str] = field(default_factory=dict)
    model: str = SERVED_NAME
    """What requests call its model; `{served_model_name}` unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Services in start order; `extra` is added to the one that is the engine."""

    name: str
    description: str
    """What `kvswarm targets` says of it."""
    services: tuple[ServiceSpec, ...]
    """Names of services, in the order of their start."""
    extra: Addition
    """`args` and `env` on top of those of its engine."""
    when: Mapping[str, Addition] = field(default_factory=dict)
    """Tables with more of these under a condition."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request; in a text `{max_tokens}` is the length of its reply."""
    kv_lives: KvLife | None = None
    """As long as a `request`: nothing to empty; as its `process`: a restart empties it. Without
    it a prompt proves that caches are empty."""

    @property
    def engine(self) -> ServiceSpec:
        """The service that answers requests; of several the first."""
        return next(each for each in self.services if each.role == "engine")

    @property
    def front(self) -> ServiceSpec:
        """The service that requests are sent to: the router, where there is one."""
        return self.of_role("router") or self.engine

    def of_role(self, role: Role) -> ServiceSpec | None:
        """The first service with this role."""
        return next((each for each in self.services if each.role == role), None)


def load_catalog(extra: Path | None = None) -> dict[str, TargetSpec]:
    """The shipped targets, with those of `extra` merged over them, by name.

    Raises UsageError naming file, table and key for anything that is not as it must be.
    """
    files = [_shipped()]
    if extra is not None:
        files.append(_parse(_read(extra), str(extra)))
    return _Catalog(files).targets()


def usual_series(role: Literal["engine", "cache"]) -> tuple[str, Mapping[str, str]]:
    """The map of counters, by its name, of services that name none."""
    name = _USUAL_COUNTERS[role]
    return name, _series(_shipped().tables("counters")[name])


def find_target(catalog: Mapping[str, TargetSpec], name: str) -> TargetSpec:
    """The target of this name; UsageError with the known names otherwise."""
    if name not in catalog:
        raise UsageError(f"unknown target {name!r}: choose one of {', '.join(catalog)}")
    return catalog[name]


def _shipped() -> TomlTable:
    text = resources.files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8")
    return _parse(text, "catalog.toml")


def _read(path: Path) -> str:
    try:
        return without_device(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the targets file {path}: {reason}") from error


def _parse(text: str, file: str) -> TomlTable:
    try:
        root = TomlTable(tomllib.loads(text), file, "")
    except RecursionError:
        raise UsageError(f"{file} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    root.allow("services", "targets", "counters")
    return root


def _service(table: TomlTable, name: str) -> ServiceSpec:
    table.allow(*(f.name for f in fields(ServiceSpec) if f.name not in ("name", "series")))
    own = _addition(table, "argv")
    if not own.args:
        raise table.error("argv", "is missing, give the command as a list of strings")
    return ServiceSpec(
        name=name,
        argv=own.args,
        env=own.env,
        requires=table.texts("requires"),
        ready=table.route("ready") or table.required_text("ready"),
        metrics=table.route("metrics"),
        reset=table.route("reset"),
        empty_metric=table.text("empty_metric"),
        role=table.choice("role", ROLES),
        counters=table.text("counters"),
        block_size=_block_sizes(table.table("block_size")),
        when=_additions(table),
        model=table.text("model") or SERVED_NAME,
    )


def _series(table: TomlTable) -> dict[str, str]:
    """A map of counters: figures and the series they are read from."""
    table.allow(*_FIGURES)
    series = {figure: table.required_text(figure) for figure in table.values}
    for figure, text in series.items():
        try:
            MetricSeries.parse(text)
        except ValueError as error:
            raise table.error(figure, str(error)) from None
    return series


def _with_roles(services: tuple[ServiceSpec, ...], table: TomlTable) -> tuple[ServiceSpec, ...]:
    """Each service with its role: the one that was given, or the usual one."""
    has_engine = any(each.role == "engine" for each in services)
    last = [each for each in services if each.role != "router"][-1:]
    found = [
        replace(each, role=each.role or _usual_role(each, not has_engine and each in last))
        for each in services
    ]
    for role, least in (("engine", 1), ("cache", 0), ("router", 0)):
        names = [each.name for each in found if each.role == role]
        if not least <= len(names) <= 1:
            said = " and ".join(names) if names else "no service"
            raise table.error("services", f"{said} with role {role!r}, a target has one")
    return tuple(found)


def _usual_role(service: ServiceSpec, is_engine: bool) -> Role:
    if is_engine:
        return "engine"
    return "cache" if service.reset else "service"


def _block_sizes(table: TomlTable) -> dict[str, int]:
    table.allow(*PLATFORMS)
    for key, value in table.values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise table.error(key, f"must be a number of tokens, not {value!r}")
    return dict(table.values)


def _body(table: TomlTable) -> dict[str, Any]:
    """What the target's requests say beside what any request says."""
    body = table.table("body")
    for name in our_fields(body.values):
        raise body.error(name, "is set by the client itself, leave it out")
    body.require_json()
    return dict(body.values)


def _additions(table: TomlTable) -> dict[str, Addition]:
    table.table("when").allow(*CONDITIONS)
    additions = {}
    for condition, inner in table.tables("when").items():
        inner.allow("args", "env")
        additions[condition] = _addition(inner, "args")
    return additions


def _addition(table: TomlTable, key: str) -> Addition:
    addition = Addition(table.texts(key), table.mapping("env"))
    model = table.text("model") or ""
    for place, texts in ((key, addition.args), ("env", addition.env.values()), ("model", [model])):
        for name in filter(None, map(unknown, texts)):
            known = ", ".join(f"{{{name}}}" for name in (*KNOWN, "port"))
            raise table.error(place, f"unknown placeholder {{{name}}}, known are {known}")
    return addition


class _Catalog:
    """The tables of all files; of two with one name the later file's counts."""

    def __init__(self, files: list[TomlTable]) -> None:
        self._files = files
        self._services = {
            name: _service(table, name)
            for file in files
            for name, table in file.tables("services").items()
        }
        self._counters = {
            name: _series(table)
            for file in files
            for name, table in file.tables("counters").items()
        }
        self._require_counters()

    def targets(self) -> dict[str, TargetSpec]:
        names = dict.fromkeys(name for file in self._files for name in file.table("targets").values)
        return {name: self._target(name, len(self._files), ()) for name in names}

    def _target(self, name: str, below: int, chain: tuple[TomlTable, ...]) -> TargetSpec:
        """The topmost target of this name in `files[:below]`, with what it extends."""
        level, table = self._find(name, below)
        table.allow(
            *("description", "extends", "services", "args", "env", "cache_args", "reset", "when"),
            *("body", "kv_lives"),
        )
        if table in chain:
            raise table.error("extends", "leads back to this target")
        base = self._base(table, name, level, (*chain, table))
        services = self._named_services(table) or (base.services if base else ())
        if not services:
            raise table.error("services", "is missing, list services or name a target to extend")
        extra, when = _addition(table, "args"), _additions(table)
        body, kv_lives = _body(table), table.choice("kv_lives", get_args(KvLife))
        if base is not None:
            extra, body = base.extra.then(extra), {**base.body, **body}
            kv_lives = kv_lives or base.kv_lives
            for condition, addition in base.when.items():
                when[condition] = addition.then(when.get(condition, Addition()))
        description = table.text("description") or (base.description if base else "")
        found = self._observed(services, table, base.engine if base else None)
        return TargetSpec(name, description, found, extra, when, body, kv_lives)

    def _observed(
        self, services: tuple[ServiceSpec, ...], table: TomlTable, extended: ServiceSpec | None
    ) -> tuple[ServiceSpec, ...]:
        """The services with their roles and counters, the engine's reset route, by default that of
        the same engine in what is extended, and what is added to the cache's command."""
        reset, cache_args = table.route("reset"), tuple(table.texts("cache_args"))
        if reset is None and extended and extended.name in {each.name for each in services}:
            reset = extended.reset
        found = []
        for each in _with_roles(services, table):
            counters = each.counters or _USUAL_COUNTERS.get(str(each.role), "")
            series = self._counters.get(counters, {})
            route = reset if reset and each.role == "engine" else each.reset
            argv = (*each.argv, *cache_args) if each.role == "cache" else each.argv
            each = replace(each, argv=argv, counters=counters or None, series=series)
            found.append(replace(each, reset=route))
        if cache_args and all(each.role != "cache" for each in found):
            raise table.error("cache_args", "is for a target with a cache, which this one lacks")
        return tuple(found)

    def _require_counters(self) -> None:
        for file in self._files:
            for table in file.tables("services").values():
                name = table.text("counters")
                if name is not None and name not in self._counters:
                    known = ", ".join(self._counters)
                    raise table.error("counters", f"unknown counters {name!r}, known are {known}")

    def _find(self, name: str, below: int) -> tuple[int, TomlTable]:
        levels = [i for i in range(below) if name in self._files[i].table("targets").values]
        return levels[-1], self._files[levels[-1]].tables("targets")[name]

    def _base(
        self, table: TomlTable, name: str, level: int, chain: tuple[TomlTable, ...]
    ) -> TargetSpec | None:
        """What `extends` names; a target that extends its own name means an earlier file's."""
        base = table.text("extends")
        if base is None:
            return None
        below = level if base == name else len(self._files)
        known = {n: None for file in self._files[:below] for n in file.table("targets").values}
        if base not in known:
            raise table.error("extends", f"unknown target {base!r}, known are {', '.join(known)}")
        return self._target(base, below, chain)

    def _named_services(self, table: TomlTable) -> tuple[ServiceSpec, ...]:
        names = table.texts("services")
        for name in names:
            if name not in self._services:
                known = ", ".join(self._services)
                raise table.error("services", f"unknown service {name!r}, known are {known}")
            if names.count(name) > 1:
                raise table.error("services", f"{name!r} is there twice, name it once")
        return tuple(self._services[name] for name in names)
