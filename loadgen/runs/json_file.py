"""The JSON files of a run, and what is said of files that are not as they should be."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.scratch import write_whole


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with a file: `remark` for whoever shows what there is, `refusal` for whoever
    decides something by it; that is empty where the rest can be relied on. `is_of_rows` says that
    requests are missing or there twice, of which either should know."""

    remark: str
    refusal: str = ""
    is_of_rows: bool = False


def refuse(problems: Sequence[FileProblem]) -> None:
    """Raise UsageError for the first that allows no decision."""
    for problem in problems:
        if problem.refusal:
            raise UsageError(problem.refusal)


def malformed(path: Path, what: str) -> UsageError:
    """What to say of a file that is not as kvswarm writes it."""
    return UsageError(f"{path} is not as kvswarm writes it, {what}: restore it or run again")


def parse_object(path: Path) -> tuple[dict[str, Any], list[FileProblem]]:
    """A JSON object, an empty one where there is none, and why."""
    broken = f"{path.name} is broken"
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except FileNotFoundError:
        return {}, [FileProblem(f"there is no {path.name}")]
    except OSError as error:
        return {}, [FileProblem(broken, f"{path} cannot be read ({error.strerror})")]
    except (ValueError, RecursionError) as error:
        return {}, [FileProblem(broken, f"{path} is no whole JSON file ({error}): restore it")]
    if not isinstance(value, dict):
        return {}, [FileProblem(broken, str(malformed(path, "it holds no JSON object")))]
    return value, []


def _finite(text: str) -> float:
    """No other number is ever written. Raises ValueError."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"it holds the number {text}")
    return number


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, an empty one where there is no such file. Raises UsageError for a file that
    holds anything else: what it would tell must not be taken for unsaid."""
    value, problems = parse_object(path)
    refuse(problems)
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one where the file is missing or broken."""
    return parse_object(path)[0]


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader never sees half of it. Names of files that are no UTF-8 have a
    `?` for each byte that is none; what fails leaves nothing behind."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str, allow_nan=False)
    write_whole(path, f"{text}\n".encode(errors="replace"))


def value_at(content: Any, path: str) -> Any:
    """What stands below a dotted path such as `metrics.ttft_ms.p50`, None where nothing does."""
    for name in path.split("."):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content
