"""A run as its directory tells it: the one reader of everything that a run leaves behind."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.record import BatchRecord
from loadgen.runs.columns import MOST, Columns, Floats, kinds_of, read_columns
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import FileProblem, malformed, parse_object, refuse, value_at
from loadgen.runs.requests import Requests, read_requests
from loadgen.stats.self_watch import ClientSample
from loadgen.stats.server_counters import ServerSample
from loadgen.stats.steady_state import SteadyState

REQUESTS_CSV, BATCHES_CSV, SUMMARY_JSON = "requests.csv", "batches.csv", "summary.json"
SERVER_CSV, CLIENT_CSV = "server_metrics.csv", "client_metrics.csv"
SIMULATED = "simulated"
"""The `cache_state` of a run that no server answered, in which it differs from every real one, and
what its target tells of the engine that is simulated."""


class DescribedRun:
    """What is read from the `description` of a run, that of `run.json`."""

    @property
    def description(self) -> Mapping[str, Any]:
        """The whole of it."""
        raise NotImplementedError

    @property
    def options(self) -> Mapping[str, Any]:
        """Those of the run, by name."""
        found = self.description.get("options")
        return found if isinstance(found, Mapping) else {}

    @property
    def target(self) -> Mapping[str, Any]:
        """What kvswarm started for it, empty for a host of others."""
        found = self.description.get("target")
        return found if isinstance(found, Mapping) else {}

    @property
    def is_simulated(self) -> bool:
        """Whether no server answered."""
        return SIMULATED in self.target

    @property
    def engine_argv(self) -> list[str]:
        """The words of the command lines of all services that kvswarm started."""
        argv = self.target.get("argv")
        services = argv.values() if isinstance(argv, Mapping) else ()
        told = (words for words in services if isinstance(words, list))
        return [str(word) for words in told for word in words]


@dataclass
class RecordedRun(DescribedRun):
    """Each part is read when it is first asked for, and has what was wrong with it in `problems`.

    Where `is_strict`, a part that is not as kvswarm writes it raises UsageError: who decides
    something must not take what a broken file would tell for unsaid. `wanted` names the columns
    of `requests.csv` that are needed beside those that say what counts, None all of them.
    `given_warmup_s` is left out of what counts, by None what the run itself left out.
    """

    path: Path
    is_strict: bool = False
    wanted: Sequence[str] | None = None
    given_warmup_s: float | None = None
    problems: list[FileProblem] = field(default_factory=list)

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """`run.json`, empty where there is none."""
        return self._object(RUN_JSON, DESCRIPTION)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """`summary.json`, empty where there is none."""
        return self._object(SUMMARY_JSON, SUMMARY)

    @property
    def is_batched(self) -> bool:
        """Whether it sent batches."""
        return (self.path / BATCHES_CSV).is_file()

    @property
    def reset_s(self) -> float | None:
        """When its statistics were last reset: what ended before does not count."""
        found = self.summary.get("stats_reset_s")
        return float(found) if isinstance(found, int | float) and abs(found) <= MOST else None

    @property
    def warmup_s(self) -> float:
        """What is left out at its start."""
        return self.own_warmup_s if self.given_warmup_s is None else self.given_warmup_s

    @cached_property
    def own_warmup_s(self) -> float:
        """What `--warmup` left out of its figures, as the summary says; a run that did not come to
        its end left out what it was told."""
        told = self.summary.get("warmup")
        seconds = told.get("seconds") if isinstance(told, Mapping) else None
        return above_0(self.options.get("warmup") if seconds is None else seconds)

    @cached_property
    def rows(self) -> Columns:
        """`requests.csv` as it stands."""
        return self._told(read_requests(self.path / REQUESTS_CSV, self.wanted))

    @cached_property
    def requests(self) -> Requests:
        """The requests that count, in the order of sending."""
        found = Requests.of(self.rows, self.reset_s, self.warmup_s)
        self.problems += found.columns.problems[len(self.rows.problems) :]
        if missing := self._missing(found):
            self.problems.append(FileProblem(missing, is_of_rows=True))
        return found

    @property
    def missing(self) -> str:
        """What is said where the summary counts other rows than the file has, "" for the same."""
        return self._missing(self.requests)

    def _missing(self, found: Requests) -> str:
        """As after a full disk, or where rows of another run were appended."""
        told = self.summary.get("requests")
        if not isinstance(told, int) or self.reset_s is not None or not len(found):
            return ""
        if self.warmup_s != self.own_warmup_s:
            found = Requests.of(self.rows, None, self.own_warmup_s)
        if len(found) > told:
            return f"{REQUESTS_CSV} has {len(found):,} requests, and the summary counts {told:,}"
        held = f"{len(found):,} of the {told:,} requests"
        return f"{REQUESTS_CSV} has {held} that the summary counts" if len(found) < told else ""

    @property
    def makespans_s(self) -> Floats:
        """Of the batches that count and ended `ok`, in the order of sending; empty without any."""
        return self._batches[1]

    @property
    def batch_numbers(self) -> Floats:
        """Of the same batches, the places in the sequence."""
        return self._batches[0]

    @cached_property
    def _batches(self) -> tuple[Floats, Floats]:
        if not self.is_batched:
            return np.zeros(0), np.zeros(0)
        numbers, _ = kinds_of(BatchRecord)
        needed = ("sent_s", "last_reply_s", "makespan_s")
        names = (*numbers, "batch_id")
        rows = self._told(read_columns(self.path / BATCHES_CSV, names, needed=needed))
        counts = ~np.isnan(rows.number("makespan_s"))
        if self.reset_s is not None:
            counts &= np.nan_to_num(rows.number("last_reply_s")) >= self.reset_s
        if self.warmup_s:
            counts &= rows.number("scheduled_s") >= self.warmup_s
        order = np.argsort(rows.number("sent_s"), kind="stable")
        kept = order[counts[order]]
        return rows.number("batch_id", kept), rows.number("makespan_s", kept)

    @cached_property
    def server(self) -> Columns:
        """`server_metrics.csv`: what the engine said of itself, a row a second."""
        return self._told(read_columns(self.path / SERVER_CSV, *kinds_of(ServerSample)))

    @cached_property
    def client(self) -> Columns:
        """`client_metrics.csv`: the load generator's own lag, a row a second and process."""
        return self._told(read_columns(self.path / CLIENT_CSV, *kinds_of(ClientSample)))

    @cached_property
    def steady_state(self) -> SteadyState | None:
        """Of the requests that count; None where the load was not meant to be steady."""
        return self.requests.steady_state(self.options, self.is_batched)

    def _told(self, columns: Columns) -> Columns:
        self.problems += columns.problems
        if self.is_strict:
            refuse(columns.problems)
        return columns

    def _object(self, name: str, forms: Mapping[str, Any]) -> Mapping[str, Any]:
        content, problems = parse_object(self.path / name)
        odd = [
            key
            for key, form in forms.items()
            if (told := value_at(content, key)) is not None and not _is_as_written(told, form)
        ]
        for key in odd:
            remark = f"{name}: {key} is not as kvswarm writes it"
            told = str(value_at(content, key))[:40]
            refusal = str(malformed(self.path / name, f"{key} is {told!r}"))
            problems.append(FileProblem(remark, refusal))
        self.problems += problems
        if self.is_strict:
            refuse(problems)
        left_out = {key.partition(".")[0] for key in odd}
        return {key: value for key, value in content.items() if key not in left_out}


PREFIX_CACHING = "--enable-prefix-caching"
SHORT = {"-q": "--quantization", "-tp": "--tensor-parallel-size"}


def argument(argv: Sequence[str], flag: str) -> str | None:
    """What stands behind a flag the last time it is given, None where it is not.

    Engines take the last one too, and underscores in a flag's name for dashes.
    """
    found = None
    for word, after in zip(argv, [*argv[1:], None], strict=False):
        _, equals, value = word.partition("=")
        if flag_of(word) == flag and (equals or after is not None):
            found = value if equals else after
    return found


def is_on(argv: Sequence[str], switch: str, usual: bool = True) -> bool:
    """Whether a switch of an engine is on: by the last of it and its `--no-` form, `usual` without
    either."""
    either = switch, f"--no-{switch.removeprefix('--')}"
    last = [flag for flag in map(flag_of, argv) if flag in either][-1:]
    return last == [switch] if last else usual


def count_of(told: str) -> int | None:
    """A number as vLLM takes it on its command line, None for anything else: K is 1,024, k is
    1,000, and only such has a fraction."""
    found = re.fullmatch(r"(\d+)([KMGT]?)|(\d+(?:\.\d+)?)([kmgt])", told)
    whole, binary, decimal, factor = found.groups() if found else (None,) * 4
    if decimal and factor:
        return int(float(decimal) * 1000 ** " kmgt".index(factor))
    return int(whole) * int(1024 ** " KMGT".index(binary or " ")) if whole else None


def flag_of(word: str) -> str:
    """The flag that a word of a command line is, in its long spelling with dashes; other words up
    to their first equals sign."""
    name = word.partition("=")[0]
    return SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)


_NUMBER = (int, float)
DESCRIPTION: Mapping[str, Any] = {
    **dict.fromkeys(("target.argv", "target.sources", "target.simulated"), dict),
    **dict.fromkeys(("target.block_size", "target.usable_blocks", "target.usable_tokens"), int),
    "target.max_model_len": int,
    "target.tokenizer": str,
    "target.replicas": int,
    "target.router": str,
    "command_line": list,
    "options": dict,
    "target": dict,
    "machine": dict,
    "versions": dict,
    "notes": list,
    "host": str,
    "model": str,
    "cache_state": str,
    "users": int,
    "workers": int,
    "start_unix_s": _NUMBER,
    "exit_code": int,
}
SUMMARY: Mapping[str, Any] = {
    "outcomes": dict,
    "metrics": dict,
    "server": dict,
    "replicas": dict,
    "requests": int,
    "duration_s": _NUMBER,
    "engine_deaths": list,
    "stats_reset_s": _NUMBER,
    "client_saturated": bool,
    "lost_workers": int,
    "token_times": dict,
    "warmup": dict,
    "resends": int,
    "retries": int,
}


def _is_as_written(value: Any, form: Any) -> bool:
    return isinstance(value, form) and (form is not _NUMBER or abs(value) <= MOST)


def above_0(value: Any) -> float:
    """An option as a finite number above 0, else 0."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):  # one that was to be found, and was not
        return 0.0
    return seconds if 0 < seconds < math.inf else 0.0
