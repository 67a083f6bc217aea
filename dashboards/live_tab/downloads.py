"""Our tables as CSV beside Locust's: the files of the run, and the table of contexts."""

from collections.abc import Iterator
from pathlib import Path

from flask import Response

from dashboards.live_tab.live_view import LiveView
from loadgen.runs.csv_log import to_csv

DOWNLOADS: dict[str, str] = {
    "requests": "requests",
    "batches": "batches",
    "server_metrics": "server metrics",
    "client_metrics": "client metrics",
    "contexts": "per-context",
}
CONTEXT_COLUMNS = (
    "context_id",
    "requests",
    "failed",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "prompt_tokens",
    "cached_tokens",
    "cached_share",
)
OTHERS = "(others)"

_CHUNK_BYTES = 1 << 16


class Downloads:
    """Answers with a table of the current swarm, or of the last one; else says why not."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def csv(self, name: str) -> Response:
        """The table of that name in `DOWNLOADS`."""
        if name not in DOWNLOADS:
            return _refusal(f"there is no table {name[:40]!r}: take one of {', '.join(DOWNLOADS)}")
        run = self._view.leader.run
        if run is None:
            return _refusal("no swarm has run yet: start one, then download its tables")
        if name == "contexts":
            return _attachment(iter([self._contexts()]), "contexts.csv")
        if run.directory is None:
            return _refusal("this swarm keeps no files: start Locust with --out DIR")
        path = run.directory.path / f"{name}.csv"
        run.ledger.flush()
        if not path.exists():
            return _refusal(f"this swarm has no {name}.csv: its users send no batches")
        return _attachment(_content(path, path.stat().st_size), f"{path.parent.name}_{path.name}")

    def _contexts(self) -> str:
        top, others = self._view.all_contexts()
        named = [*top, (OTHERS, others)] if others.requests else top
        rows = [
            (
                name,
                figures.requests,
                figures.failed,
                figures.ttft_ms.quantile(0.5),
                figures.ttft_ms.quantile(0.95),
                figures.prompt_tokens,
                figures.cached_tokens if figures.tells_cached else None,
                figures.cached_share,
            )
            for name, figures in named
        ]
        return to_csv([CONTEXT_COLUMNS]) + to_csv(rows)


def _content(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes: whole rows, while the file grows on."""
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk


def _attachment(content: Iterator[bytes] | Iterator[str], filename: str) -> Response:
    response = Response(content, mimetype="text/csv")
    response.headers.set("Content-Disposition", "attachment", filename=filename)
    return response


def _refusal(sentence: str) -> Response:
    return Response(f"{sentence}\n", 404, mimetype="text/plain")
