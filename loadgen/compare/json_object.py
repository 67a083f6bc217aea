"""JSON files of a run, with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, an empty one where there is no such file. Raises UsageError for a file that
    holds anything else: what it would tell must not be taken for unsaid."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no whole JSON file ({error}): restore it") from None
    if not isinstance(value, dict):
        raise malformed(path, "it holds no object")
    return value


def malformed(path: Path, what: str) -> UsageError:
    """What to say of a file that is not as kvswarm writes it."""
    return UsageError(f"{path} is not as kvswarm writes it, {what}: restore it or run again")
