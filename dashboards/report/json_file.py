"""`run.json` and `summary.json` as far as they are what kvswarm writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.runs.json_file import read_json

_NUMBER = (int, float)
DESCRIPTION: Mapping[str, Any] = {
    "command_line": list,
    "options": dict,
    "target": dict,
    "machine": dict,
    "versions": dict,
    "notes": list,
    "host": str,
    "model": str,
    "cache_state": str,
    "users": int,
    "workers": int,
    "start_unix_s": _NUMBER,
    "exit_code": int,
}
SUMMARY: Mapping[str, Any] = {
    "outcomes": dict,
    "metrics": dict,
    "server": dict,
    "stats_reset_s": _NUMBER,
    "client_saturated": bool,
    "lost_workers": int,
    "warmup": dict,
    "resends": int,
}


@dataclass(frozen=True, slots=True)
class JsonFile:
    """`content` without what has another form than expected; `faults` says what that was."""

    content: Mapping[str, Any]
    faults: tuple[str, ...]


def read_json_file(path: Path, forms: Mapping[str, Any]) -> JsonFile:
    """Empty where the file is missing or broken."""
    if not path.is_file():
        return JsonFile({}, (f"there is no {path.name}",))
    content = read_json(path)
    if not content:
        return JsonFile({}, (f"{path.name} is broken",))
    odd = [
        name
        for name, form in forms.items()
        if content.get(name) is not None and not isinstance(content[name], form)
    ]
    kept = {name: value for name, value in content.items() if name not in odd}
    return JsonFile(kept, tuple(f"{path.name}: {name} is not as kvswarm writes it" for name in odd))
