"""The lines of a service's log that say why it failed."""

import re
from pathlib import Path

TAIL_BYTES = 256 * 1024
MAX_LINES = 3
MAX_CHARACTERS = 300

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What log formats put before the message: "(EngineCore pid=1) ERROR 11-21 03:04:23 [core.py:9] ".
PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:\[?(?:ERROR|CRITICAL)\b[^\]]*\]\s*)?")
EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure)(?::\s.*)?$")
USAGE = re.compile(r"^(?:\S+: error: |Value error, ).+$")  # argparse's and pydantic's
# What vLLM raises once one of its processes has failed, never the reason itself.
CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|Worker failed with error|ValidationError: "
)
NOISE = re.compile(r"\b(INFO|DEBUG)\b|warn|leaked|nanobind|^Traceback|until Ctrl-C$", re.IGNORECASE)


def telling_lines(log: Path, start: int = 0) -> list[str]:
    """The last distinct exceptions and usage errors written after byte `start`, oldest first.

    Where there are none, the last line that is neither routine output nor a warning.
    """
    lines = [PREFIX.sub("", line).strip() for line in _tail(log, start)]
    errors = [line for line in lines if EXCEPTION.match(line) or USAGE.match(line)]
    reasons = [line for line in errors if not CONSEQUENCE.search(line)] or errors
    if not reasons:
        reasons = [line for line in lines if line and not NOISE.search(line)][-1:]
    return [_cut(line) for line in dict.fromkeys(reasons)][-MAX_LINES:]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 1]}…"


def _tail(log: Path, start: int) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return ANSI.sub("", text).splitlines()
