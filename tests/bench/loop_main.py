"""The command line of a bare loop: what it sends where, how long, and where its times go."""

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import uvloop

Run = Callable[[str, list[bytes], int, float], Awaitable[list[Any]]]
"""Takes URL, bodies, requests in flight and seconds; gives what was seen of each reply."""


def loop_main(run: Run) -> None:
    """Run the loop on uvloop and keep what it saw as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--bodies", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    bodies = parsed.bodies.read_bytes().splitlines()
    kept = uvloop.run(run(parsed.url, bodies, parsed.concurrency, parsed.seconds))
    parsed.out.write_bytes(orjson.dumps(kept))
