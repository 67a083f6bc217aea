"""How a run was made, as a flat list of names and values that can be set against another's."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.runs.directory import DEFAULT_FILE

NOT_OF_THE_WORKLOAD = frozenset(
    (
        *("out", "drain", "max_silence", "max_failures", "max_lag_ms", "keep_cache", "model"),
        *("seed", "rag_url", "metrics_port", "metrics_host", "warmup", "gate", "require_proof"),
    )
)
"""Options that do not change what is sent, or that stand under a better name."""
TARGET, ARGUMENTS = "target", "target_arguments"
DIGESTS: Mapping[str, tuple[str, ...]] = {
    "corpus.sha256": ("corpus", "questions"),
    "trace.sha256": ("trace",),
}
"""Each with the options that say where the texts are, which the digest makes needless."""
SIZES = ("block_size", "usable_tokens", "max_model_len", "l1_gb")
OF_THE_MOMENT = frozenset(
    (
        *("--host", "--http-host", "--nodes", "--link", "--scratch-dir"),
        *("PROMETHEUS_MULTIPROC_DIR", "HF_HUB_CACHE"),
    )
)
"""Flags and variables of addresses and folders that were drawn for one start."""
DRAWN = re.compile(r'(?<=127\.0\.0\.1:)\d+|(?<=\]:)\d+|(?<=port":)\d+|(?<=kvswarm-)[0-9a-f]{16}')
"""Ports and names of folders in what stands behind another flag."""


def facts_of(description: Mapping[str, Any], batched: bool = False) -> dict[str, str] | None:
    """The facts of a `run.json`; None for an empty one. Raises TypeError, AttributeError or
    ValueError for one that is not as kvswarm writes it.

    The names: `target`, `target_arguments.*`, `model`, `seed`, `cache_state`, `corpus.sha256`,
    `trace.sha256`, `locustfile`, `batched`, and every option of the workload under its own.
    """
    if not description:
        return None
    options = _mapping(description, "options")
    facts = {name: value for name, value in options.items() if name not in NOT_OF_THE_WORKLOAD}
    for name in ("model", "seed", "cache_state"):
        facts[name] = description.get(name)
    for name in DIGESTS:
        if digest := description.get(name.replace(".", "_")):
            facts[name] = digest
    facts["locustfile"] = _locustfile(description.get("command_line") or [])
    facts["batched"] = batched
    target = _mapping(description, "target")
    facts[TARGET] = target.get("name") or description.get("host")
    facts.update(_target_arguments(target))
    library = _mapping(description, "rag")
    facts |= {f"rag.{name}": value for name, value in library.items() if "url" not in name}
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        for name, value in facts.items()
    }


def _mapping(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name) or {}
    if not isinstance(found, Mapping):
        raise TypeError(f"{name} is no object")
    return found


def _locustfile(command_line: Sequence[str]) -> str:
    """Its name alone: `unordered` and `/path/unordered.py` are the same."""
    words = list(command_line)
    if "-f" in words[:-1]:
        return Path(words[words.index("-f") + 1]).stem
    command = words.index("run") + 1 if "run" in words else len(words)
    named = words[command] if command < len(words) else ""
    return Path(DEFAULT_FILE if "run" in words and named[:1] in ("", "-") else named).stem


def _target_arguments(target: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in SIZES:
        if target.get(name) is not None:
            yield f"{ARGUMENTS}.{name}", target[name]
    for service, argv in _mapping(target, "argv").items():
        for flag, value in _flags(argv):
            if flag not in OF_THE_MOMENT and not flag.endswith(("port", "ports")):
                yield f"{ARGUMENTS}.{service}.{flag}", DRAWN.sub("DRAWN", value)
    for service, variables in _mapping(target, "env").items():
        for name, value in variables.items():
            if name not in OF_THE_MOMENT:
                yield f"{ARGUMENTS}.{service}.{name}", DRAWN.sub("DRAWN", str(value))


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with what stands behind it; the program before the first flag is left out."""
    flag, values = "", list[str]()
    for word in [*argv, "--"]:
        if word.startswith("--"):
            if flag:
                yield flag, " ".join(values)
            flag, _, value = word.partition("=")
            values = [value] if value else []
        else:
            values.append(word)
