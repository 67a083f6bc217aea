"""Cells of studies made by hand: runs in folders, as a sweep leaves them."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dashboards.studies.cell import StudyCell
from loadgen.record import COLUMNS


@dataclass(frozen=True, slots=True)
class Made:
    """Requests of a run: a figure for each, in the order of sending."""

    ttft_ms: Sequence[float]
    prompt_tokens: Sequence[float] = ()
    cached_tokens: Sequence[float] = ()
    contexts: Sequence[str] = ()
    repeats: Sequence[bool] = ()
    right: Sequence[bool] = ()
    retrieval_ms: Sequence[float] = ()
    tpot_ms: Sequence[float] = ()
    every_s: float = 1.0
    """From request to request."""


def noisy(middle_ms: float, spread: float, seed: int, count: int = 60) -> list[float]:
    """Times around `middle_ms` that differ by a factor of about 1 + `spread`."""
    return (
        middle_ms * np.exp(spread * np.random.default_rng(seed).standard_normal(count))
    ).tolist()


def cell(
    folder: Path,
    part: str,
    made: Made,
    repeat: int = 1,
    fault: str = "",
    late: bool = False,
    figures: dict[str, float | None] | None = None,
    **settings: object,
) -> StudyCell:
    """A cell with its run directory below `folder`."""
    run = folder / f"{part}-{len(list(folder.glob('*')))}"
    write_run(run, made, repeat)
    known: dict[str, float | None] = {
        "requests": float(len(made.ttft_ms)),
        "ttft_mean_ms": float(np.mean(made.ttft_ms)),
        "ttft_p50_ms": float(np.median(made.ttft_ms)),
        "ttft_p95_ms": float(np.quantile(made.ttft_ms, 0.95)),
        "requests_per_s": 10.0,
        "hit_rate": 0.5,
        "computed_prompt_tokens": 10_000.0,
    }
    texts = {name: str(value) for name, value in settings.items()}
    return StudyCell(part, texts, repeat, run, {**known, **(figures or {})}, fault, late)


def write_run(run: Path, made: Made, seed: int = 0) -> None:
    """The directory of a run, without a summary."""
    run.mkdir(parents=True)
    _write(run / "requests.csv", made)
    description = {"options": {"seed": seed}, "seed": seed, "exit_code": 0}
    (run / "run.json").write_text(json.dumps(description))


def _write(file: Path, made: Made) -> None:
    count = len(made.ttft_ms)
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="")
        writer.writeheader()
        for at in range(count):
            sent_s = made.every_s * at
            first_s = sent_s + made.ttft_ms[at] / 1000
            writer.writerow(
                {
                    "request_id": at,
                    "question_id": f"q{at // 2}" + ("~2" if at % 2 else ""),
                    "label_correct": str(made.right[at]).lower() if made.right else "",
                    "context_id": made.contexts[at] if made.contexts else "one",
                    "repeat": str(bool(made.repeats and made.repeats[at])).lower(),
                    "scheduled_s": sent_s,
                    "sent_s": sent_s,
                    "first_token_s": first_s,
                    "end_s": first_s + 0.1,
                    "ttft_ms": made.ttft_ms[at],
                    "e2e_ms": made.ttft_ms[at] + 100,
                    "itl_mean_ms": 10,
                    "tpot_ms": made.tpot_ms[at] if made.tpot_ms else "",
                    "prompt_tokens": made.prompt_tokens[at] if made.prompt_tokens else 1000,
                    "cached_tokens": made.cached_tokens[at] if made.cached_tokens else 0,
                    "retrieval_ms": made.retrieval_ms[at] if made.retrieval_ms else "",
                    "output_tokens": 8,
                    "outcome": "ok",
                }
            )
