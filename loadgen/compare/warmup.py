"""What of runs is left out as their warm-up, and whether the rest is of a steady state."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.compare.requests_csv import TimedRequests
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import read_json
from loadgen.stats.steady_state import (
    COLUMNS,
    SteadyState,
    each_of,
    enough_s,
    find_steady_state,
    is_meant_steady,
    is_notable,
)

SUMMARY_JSON = "summary.json"


def own_warmup_s(path: Path) -> float:
    """What `--warmup` left out of the figures of a run directory, in seconds; 0 for other files.

    As the summary says; a run that did not come to its end left out what it was told.
    """
    told, options = read_json(path / SUMMARY_JSON).get("warmup"), read_json(path / RUN_JSON)
    seconds = told.get("seconds") if isinstance(told, Mapping) else None
    if seconds is None:
        given = options.get("options")
        seconds = given.get("warmup") if isinstance(given, Mapping) else None
    return _seconds(seconds)


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):  # one that was to be found, and was not
        return 0.0
    return seconds if 0 < seconds < math.inf else 0.0


def common_warmup_s(paths: Sequence[Path]) -> float:
    """The longest of all runs: it is left out of each of them, so that all tell the same."""
    return max(map(own_warmup_s, paths), default=0.0)


def steady_state_of(sent: TimedRequests, options: Any, batched: bool) -> SteadyState | None:
    """Of a run with these options, whose requests are those after its warm-up; None where it was
    not meant to be steady. Of many, those are looked at that the run itself looked at."""
    if not is_meant_steady(options if isinstance(options, Mapping) else {}, batched):
        return None
    ok = np.flatnonzero(sent.outcome == "ok")
    each = each_of(len(ok))
    kept = ok[np.argsort(sent.order[ok])][::each]
    columns = {name: sent.column(name)[kept].tolist() for name in COLUMNS}
    return find_steady_state(columns, each)


def steady_remarks(found: SteadyState | None, warmup_s: float) -> Iterator[str]:
    """What there is to say of a run without its first `warmup_s` seconds."""
    if warmup_s:
        yield f"the first {warmup_s:.4g} s are left out as its warm-up"
    if found is None:
        return
    if found.settled is False:
        yield "it never settled: time to first token drifted, so its figures are of no steady state"
    elif is_notable(found.to_json()):
        yield (
            f"{found.early} requests of its first {found.from_s:.1f} s are a warm-up that moves the"
            f" mean TTFT by {found.shift:+.0%} (--warmup {enough_s(found.from_s)} leaves them out)"
        )
