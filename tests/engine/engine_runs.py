"""Runs on a target that a test file has started, and what runs leave behind."""

import csv
import json
from pathlib import Path
from typing import Any

import aiohttp

from loadgen.launch.arguments import parse_run
from loadgen.launch.swarm_process import StartedTarget, control_line
from loadgen.launch.terminal import Interruption
from loadgen.scratch import scratch_folder
from loadgen.targets.engine_api import fixed_prompt
from loadgen.targets.target import RunningTarget


def rows(out: Path, name: str = "requests.csv") -> list[dict[str, str]]:
    """None where the file is not there yet."""
    path = out / name
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(out: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((out / name).read_text()))


async def run_on(
    target: RunningTarget, out: Path, *more: object, interruption: Interruption | None = None
) -> int:
    """What `kvswarm run --target` does once the target is up; the run's exit code."""
    small = ["--contexts", 3, "--context-tokens", 400, "--output-tokens", 8]
    # A busy machine must not make the run invalid.
    fixed = ["--out", out, *small, "--max-lag-ms", 60_000]
    words = ["unordered", "--target", target.facts()["name"], *fixed, *more]
    run = parse_run("run", list(map(str, words)))
    with scratch_folder() as folder:
        async with control_line(target, folder / "control") as control:
            started = StartedTarget(target, target._settings, control, None)
            return await started.run("run", run, interruption or Interruption())


async def log_probabilities(target: RunningTarget, prompt_tokens: int) -> dict[str, Any]:
    """Of the first tokens after the fixed prompt: they tell KV that is not what was computed."""
    body = {"prompt": fixed_prompt(prompt_tokens), "max_tokens": 4, "logprobs": 5}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{target.url}/v1/completions", json={"model": target.model, "temperature": 0, **body}
        ) as response,
    ):
        answer = await response.json()
    return dict(answer["choices"][0]["logprobs"])
