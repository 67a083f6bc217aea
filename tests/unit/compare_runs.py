"""Runs made by hand for the tests of `kvswarm compare`: in memory, and as directories."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare.run import ComparedRun
from loadgen.compare.series import Ratio, Values
from loadgen.record import COLUMNS
from loadgen.runs.columns import Floats

FACTS = {"target": "vllm", "model": "tiny", "seed": "0", "cache_state": "cold", "contexts": "6"}


def ar1(rng: np.random.Generator, length: int, correlation: float) -> Floats:
    """A series with mean 0 and variance 1 in which each value remembers the one before."""
    shocks = rng.standard_normal(length + 100) * np.sqrt(1 - correlation**2)
    values, last = np.empty(length + 100), 0.0
    for index, shock in enumerate(shocks):
        values[index] = last = correlation * last + shock
    return values[100:]


def run_of(
    values: Floats | None = None, *, failed: int = 0, of: int = 100, seed: int = 0, **facts: str
) -> ComparedRun:
    """A run with TTFTs, and so many failures spread evenly over so many requests."""
    flags = np.zeros(of)
    if failed:
        flags[np.arange(failed) * of // failed] = 1
    series = {"errors": Ratio(flags, np.ones(of), of, counts=True)}
    ttft = {} if values is None else {"ttft_ms": Values(np.asarray(values))}
    return ComparedRun("run", {**series, **ttft}, facts={**FACTS, "seed": str(seed), **facts})


def write_run(path: Path, ttfts_ms: Sequence[float], **description: Any) -> Path:
    """A run directory with one request a second after another, each with this TTFT."""
    path.mkdir(parents=True)
    write_requests(path / "requests.csv", ttfts_ms)
    target = {"name": "vllm", "usable_tokens": 5120, "argv": {"vllm": argv()}, "env": {}}
    known = {
        "options": {"contexts": 6, "seed": 0, "out": str(path), "zipf": 0.0},
        "seed": 0,
        "model": "tiny",
        "target": target,
        "cache_state": "cold",
        "machine": {"cpus": 2},
        "exit_code": 0,
    }
    (path / "run.json").write_text(json.dumps(known | description))
    return path


def argv(*more: str, port: str = "40123") -> list[str]:
    return ["/usr/bin/python3", "-m", "server", "--port", port, "--block-size", "128", *more]


def write_requests(file: Path, ttfts_ms: Sequence[float], outcome: str = "ok") -> None:
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="")
        writer.writeheader()
        for number, ttft_ms in enumerate(ttfts_ms):
            sent_s = number * 0.1
            writer.writerow(
                {
                    "request_id": number,
                    "sent_s": sent_s,
                    "scheduled_s": sent_s,
                    "end_s": sent_s + 0.1,
                    "ttft_ms": ttft_ms,
                    "e2e_ms": ttft_ms + 50,
                    "itl_mean_ms": 10,
                    "prompt_tokens": 100,
                    "cached_tokens": 60,
                    "output_tokens": 8,
                    "outcome": outcome,
                }
            )
