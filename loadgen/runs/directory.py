"""The run directory: what a run leaves behind, and the only interface to whoever reads it."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadgen.errors import RecordError, UsageError
from loadgen.record import BATCH_COLUMNS, COLUMNS
from loadgen.runs.csv_log import CsvLog
from loadgen.runs.json_file import write_json
from loadgen.stats.self_watch import COLUMNS as CLIENT_COLUMNS
from loadgen.stats.server_counters import COLUMNS as SERVER_COLUMNS

RUN_JSON = "run.json"
CSV_NAMES = ("requests.csv", "server_metrics.csv", "client_metrics.csv", "batches.csv")
DEFAULT_FILE = "unordered"
"""The locustfile of a command that names none."""
RUN_FIELDS: Mapping[str, str] = {
    "command_line": "of the Locust process, header values hidden; what concerns the engine is in"
    " `target`",
    "options": "every option with its value, and `num_users`, `spawn_rate`, `run_time`",
    "seed": "of the workload",
    "users": "at the start",
    "corpus_sha256": "of documents and questions",
    "trace_sha256": "of the trace",
    "host": "the URL that was loaded",
    "model": "the served model",
    "host_facts": "what the host says of itself",
    "rag": "the RAG service: URL, embedder, documents, chunks, threshold, `strangers` (documents"
    " that the corpus has not), `questions` of its documents, `corpus_digest` of all texts; with"
    " `--labels kv` the KV service: URL, model, features, `documents`, earlier `questions`,"
    " `unknown` contexts",
    "target": "the engine that kvswarm has started: name, command lines and environment, block"
    " size, usable blocks and tokens, `max_model_len`, versions, process ids",
    "cache_state": "`cold`: the caches were shown to be empty; `warm`: with `--keep-cache`, after"
    " an earlier swarm; `unknown`: kvswarm did not start this host",
    "notes": "what was announced, such as estimated lengths",
    "workers": "processes that generated the load",
    "versions": "of the packages",
    "machine": "that generated the load",
    "start_unix_s": "zero of all `_s` columns, in seconds since 1970",
    "exit_code": "added at the end, missing where the run was killed",
    "token_clock": "as in the summary",
    "user_errors": "exceptions that user classes raised",
    "host_died": "whether the host, or the service for labels, died during the run",
    "interrupted": "whether Ctrl-C or a signal ended it",
}
"""What the fields of `run.json` are. No API keys are in it, nor texts of `--extra-body` whose names
sound like keys; all else of it is."""


class RunDirectory:
    """An open run directory; closing it twice is harmless.

    `run.json` tells how the run was made, `requests.csv` has a row per request,
    `server_metrics.csv` and `client_metrics.csv` a row per second. `batches.csv` has a row per
    batch and is there only for a swarm that sends batches.
    """

    def __init__(self, path: Path, batched: bool = False) -> None:
        self.path = path
        self.requests = CsvLog(path / "requests.csv", COLUMNS)
        self.server_metrics = CsvLog(path / "server_metrics.csv", SERVER_COLUMNS)
        self.client_metrics = CsvLog(path / "client_metrics.csv", CLIENT_COLUMNS)
        self.batches = CsvLog(path / "batches.csv", BATCH_COLUMNS) if batched else None
        self._facts: dict[str, Any] = {}
        self._error: OSError | None = None

    @property
    def fault(self) -> str | None:
        """Why it can be written no more, None while it can."""
        errors = (self._error, *(log.error for log in self._logs()))
        found = next((error for error in errors if error is not None), None)
        return None if found is None else f"{self.path} cannot be written ({reason_of(found)})"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside the block an error of the file system ends it and becomes the `fault`."""
        try:
            yield
        except OSError as error:
            self._error = self._error or error

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts to `run.json`; it is whole on disk at any time."""
        self._facts.update(facts)
        with self.writing():
            write_json(self.path / RUN_JSON, self._facts)

    def flush(self) -> None:
        """Hand all rows to the operating system."""
        for log in self._logs():
            log.flush()

    def close(self) -> None:
        """Flush and close every file."""
        for log in self._logs():
            log.close()

    def _logs(self) -> tuple[CsvLog, ...]:
        logs = (self.requests, self.server_metrics, self.client_metrics, self.batches)
        return tuple(log for log in logs if log is not None)


def check_directory(path: Path, *own: str) -> None:
    """Raise UsageError where no run can be written, or something is kept that is not in the files
    that are `own`; nothing is left behind."""
    kept = (RUN_JSON, *CSV_NAMES, "sweep.json", "saturate.json", "study.json")
    names = [name for name in kept if name not in own]
    try:
        found = next((name for name in names if (path / name).exists()), None)
    except OSError as error:  # not to be read, or a name too long
        raise _unwritable(path, error) from None
    if found is not None:
        held = "a run" if found == RUN_JSON else found
        raise UsageError(f"--out {path} already holds {held}: name another directory")
    require_writable(path)


def require_writable(path: Path, option: str = "--out") -> None:
    """Raise UsageError where no such folder can be made or written into, before anything is
    measured for it; nothing is left behind."""
    nearest = path
    try:
        while not (nearest.exists() or nearest.is_symlink() or nearest == nearest.parent):
            nearest = nearest.parent
        Path(tempfile.mkdtemp(dir=nearest)).rmdir()
    except OSError as error:
        raise _unwritable(path, error, option) from None


def require_file(path: Path, option: str) -> None:
    """The same of a file, which may be there."""
    try:
        if path.is_file() or path.is_dir():  # a pipe would wait for its reader
            path.open("ab").close()
        is_new = not path.exists()
    except OSError as error:
        said = f"{option} {path} cannot be written ({reason_of(error)})"
        raise UsageError(f"{said}: name another file") from None
    if is_new:
        require_writable(path.parent, option)


def open_directory(path: Path, batched: bool = False) -> RunDirectory:
    """Make the folder of a run and its files. Raises UsageError."""
    check_directory(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        return RunDirectory(path, batched)
    except OSError as error:
        raise _unwritable(path, error) from None


def unrecorded(path: Path, reason: str = "its disk is full, or it was deleted") -> RecordError:
    """The error for a folder that can be written no more while something is measured for it."""
    return RecordError(
        f"{path} could be written no more ({reason}): mend that, then give the same command again"
    )


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Raise RecordError for what cannot be written inside the block, which is in this folder."""
    try:
        yield
    except OSError as error:
        raise unrecorded(path, reason_of(error)) from None


def _unwritable(path: Path, error: OSError, option: str = "--out") -> UsageError:
    return UsageError(
        f"{option} {path} cannot be written ({reason_of(error)}): name another directory"
    )


def reason_of(error: OSError) -> str:
    """In the words of the system."""
    return error.strerror or str(error)
