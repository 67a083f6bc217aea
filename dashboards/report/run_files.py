"""What a run left, as far as it can be read, as a page needs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dashboards.figures.requests import DrawnRequests, drawn
from dashboards.figures.server import ServerSeries
from loadgen.errors import UsageError
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import read_json
from loadgen.runs.recorded import REQUESTS_CSV, SUMMARY_JSON, RecordedRun
from loadgen.runs.requests import CONTEXTS
from loadgen.stats.metrics import of_requests

WANTED = (
    *CONTEXTS,
    *of_requests().values(),
    *("first_token_s", "error", "slo_met", "label_correct"),
)
"""Columns of `requests.csv`."""


@dataclass
class ReportedRun(RecordedRun):
    """A run with its name on the page."""

    name: str = ""

    @cached_property
    def drawn(self) -> DrawnRequests:
        """Its requests for pictures."""
        return drawn(self.requests)

    @cached_property
    def server_series(self) -> ServerSeries | None:
        """What the engine said of itself; None where nothing was scraped."""
        columns = self.server
        known = np.flatnonzero(~np.isnan(columns.number("at_s")))
        if not len(known):
            return None
        numbers = {name: columns.number(name, known) for name in columns.numbers}
        return ServerSeries(numbers["at_s"], numbers)

    @property
    def unreachable_s(self) -> int:
        """Seconds in which the host refused or did not answer."""
        if "reachable" not in self.server.header:
            return 0
        return int((~self.server.text("reachable").among("true")).sum())


def is_run(path: Path) -> bool:
    """Whether the folder holds anything of a run that a report could be made of."""
    return any((path / name).is_file() for name in (RUN_JSON, REQUESTS_CSV, SUMMARY_JSON))


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs named, and those inside a named folder that is no run itself, in the order in which
    they were made. Raises UsageError."""
    found: list[Path] = []
    for path in paths:
        inside = [path] if is_run(path) else []
        if not inside and path.is_dir():
            inside = sorted(filter(is_run, path.iterdir()), key=_start)
        if not inside:
            reason = "no run in" if path.is_dir() else "no run at"
            raise UsageError(
                f"{reason} {path}: name the directory of a run, or one that holds some"
            )
        found += inside
    return list({path.resolve(): path for path in found}.values())


def _start(path: Path) -> tuple[float, str]:
    """When it was made, and its name."""
    start_s = read_json(path / RUN_JSON).get("start_unix_s")
    return float(start_s) if isinstance(start_s, int | float) else 0.0, path.name


def read_files(path: Path, name: str) -> ReportedRun:
    """A run directory; whatever is missing or broken is told, not raised."""
    run = ReportedRun(path, wanted=WANTED, name=name)
    _ = run.description, run.summary, run.requests, run.server, run.client
    return run
