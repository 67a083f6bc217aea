"""The sizes of the engine that a recorded run was made on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from loadgen.errors import UsageError
from loadgen.locality.kv_format import run_told_bytes
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.recorded import RecordedRun
from loadgen.twin.engine import PLUGIN, EngineShape

TARGETS = ("vllm", "vllm-context")
"""What a simulation can be of."""
UNMODELLED = ("--kv-transfer-config", "--speculative-config", "--enable-lora")


@dataclass(frozen=True, slots=True)
class CalibratedEngine:
    """What a twin keeps of the engine that it was made of. `argv` is its command line, `tokenizer`
    the folder of its model's; `bytes_per_token` of its KV cache, None where not known."""

    shape: EngineShape
    argv: tuple[str, ...] = ()
    tokenizer: str | None = None
    bytes_per_token: int | None = None

    @classmethod
    def of_run(cls, path: Path) -> Self:
        """Raises UsageError."""
        run = recorded_run(path)
        return cls(
            shape_of_run(path),
            tuple(run.engine_argv),
            run.target.get("tokenizer"),
            run_told_bytes(path, None).value,
        )

    @classmethod
    def of_twin(cls, engine: Mapping[str, Any]) -> Self:
        """What `to_json` made. Raises UsageError for a twin of an older version."""
        try:
            told = dict(engine["shape"])
            plugin = told.pop("plugin", None)
            names = {each.name for each in fields(EngineShape)}
            shape = EngineShape(**{name: told[name] for name in told if name in names})
            if plugin is not None:
                shape = replace(shape, plugin=tuple((name, value) for name, value in plugin))
            return cls(shape, tuple(engine["argv"]), engine["tokenizer"], engine["bytes_per_token"])
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                "the twin does not tell its engine: make it anew with `kvswarm calibrate RUN`, or"
                " name a RUN"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """As a twin keeps it."""
        return dict(json.loads(json.dumps(asdict(self))))


def shape_of_run(path: Path) -> EngineShape:
    """From `run.json`, with vLLM's defaults on this platform where it is silent. Raises UsageError
    for an engine that kvswarm did not start, or that has what is not modelled."""
    run = recorded_run(path)
    blocks, size = run.target.get("usable_blocks"), run.target.get("block_size")
    if not blocks or not size:
        raise UsageError(
            f"{path} does not tell the engine's blocks: give a run of `kvswarm run --target vllm`"
        )
    _require_modelled(path, run.engine_argv)
    argv = run.engine_argv
    shape = EngineShape(
        usable_blocks=int(blocks),
        block_size=int(size),
        max_model_len=int(run.target.get("max_model_len") or EngineShape().max_model_len),
        prefix_caching="--no-enable-prefix-caching" not in argv,
        async_scheduling="--async-scheduling" in argv,
        plugin=_plugin(argv),
    )
    if told := _value(argv, "--max-num-seqs"):
        shape = replace(shape, max_num_seqs=int(told))
    if told := _value(argv, "--max-num-batched-tokens"):
        shape = replace(shape, max_num_batched_tokens=int(told))
    return shape


def changed(
    shape: EngineShape,
    kv_tokens: int | None,
    target: str | None,
    plugin: Mapping[str, Any] | None = None,
) -> EngineShape:
    """Another cache or another order, with these settings of the plugin. Raises UsageError."""
    if kv_tokens is not None:
        blocks = kv_tokens // shape.block_size
        if blocks < 2:
            raise UsageError(
                f"--kv-tokens {kv_tokens} is less than two blocks of {shape.block_size}: give more"
            )
        shape = replace(shape, usable_blocks=blocks)
    if target is None:
        return shape
    if target not in TARGETS:
        raise UsageError(
            f"--target {target} is not modelled: choose one of {', '.join(TARGETS)}, or run it"
        )
    settings = tuple(sorted((plugin or {}).items()))
    return replace(shape, plugin=settings if target == "vllm-context" else None)


def _require_modelled(path: Path, argv: Sequence[str]) -> None:
    for flag in UNMODELLED:
        if flag in argv:
            raise UsageError(f"{path}: its engine has {flag}, which the twin does not model")


def _plugin(argv: Sequence[str]) -> tuple[tuple[str, object], ...] | None:
    if _value(argv, "--scheduler-cls") != PLUGIN:
        return None
    told = json.loads(_value(argv, "--additional-config") or "{}").get("context_scheduler", {})
    return tuple(sorted(told.items()))


def _value(argv: Sequence[str], flag: str) -> str:
    """Behind a flag, the last of several, empty without it."""
    found = ""
    for place, word in enumerate(argv):
        if word == flag and place + 1 < len(argv):
            found = argv[place + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def sizes_in_words(run: RecordedRun, shape: EngineShape) -> str:
    """`vllm, 5,120 tokens of cache in blocks of 128`."""
    tokens = shape.usable_blocks * shape.block_size
    name = run.target.get("name", "an engine")
    return f"{name}, {tokens:,} tokens of cache in blocks of {shape.block_size}"
