"""A file of settings that is read again while somebody serves by them."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

POLL_S = 0.25
_LOG = logging.getLogger(__name__)


async def follow(path: Path, change: Callable[[Mapping[str, Any]], None]) -> None:
    """Until cancelled. A file that cannot be read, or says what cannot be, changes nothing."""
    seen: str | None = None
    while True:
        try:
            text = await asyncio.to_thread(path.read_text, encoding="utf-8")
            if text != seen:
                seen = text
                change(_json_object(text))
        except (OSError, ValueError) as error:
            _LOG.warning("settings in %s are not taken: %s", path, error)
        await asyncio.sleep(POLL_S)


def _json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
