"""The tab's routes in Locust's web UI: its script, its figures and its downloads."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
from flask import Blueprint, Response, request, send_from_directory

from dashboards.live_tab.live_view import LiveView
from dashboards.live_tab.locust_page import DOWNLOADS
from dashboards.live_tab.served import MOST_CONTEXTS
from loadgen.runs.csv_log import to_csv

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
REPORT = "report.html"
NO_FILES = "this swarm keeps no files: start Locust with --out DIR"

_CHUNK_BYTES = 1 << 16


class Downloads:
    """Answers with a table of the current swarm, or of the last one; else says why not."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._drawing = threading.Lock()

    def csv(self, name: str) -> Response:
        """A table: `requests`, `batches`, `server_metrics`, `client_metrics` or `contexts`."""
        if name not in DOWNLOADS:
            return _refusal(f"there is no table {name[:40]!r}: take one of {', '.join(DOWNLOADS)}")
        missing = self._missing(name)
        if missing:
            return _refusal(missing)
        if name == "contexts":
            return _attachment(iter([self._contexts()]), "contexts.csv")
        path = self._path(name)
        return _attachment(_content(path, path.stat().st_size), f"{path.parent.name}_{path.name}")

    def report(self) -> Response:
        """The page of `kvswarm report` about the last swarm, made now and kept in its directory."""
        if missing := self._unfinished():
            return _refusal(missing)
        directory = self._view.leader.run.directory.path  # type: ignore[union-attr]
        # A process of its own: drawing takes seconds in which a new swarm may start here.
        command = [sys.executable, "-m", "loadgen.cli.main", "report", str(directory)]
        if not self._drawing.acquire(blocking=False):
            return _refusal("the report is being made: ask again when that is done")
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            self._drawing.release()
        if made.returncode:
            return _refusal((made.stderr.strip() or "no report came of it").splitlines()[-1])
        page = (directory / REPORT).read_bytes()
        return _attachment(iter([page]), f"{directory.name}_{REPORT}", "text/html")

    def finished(self) -> dict[str, str]:
        """The directory of the last swarm, and why there is no report of it yet."""
        run = self._view.leader.run
        directory = run.directory if run is not None else None
        return {
            "directory": _utf8(str(directory.path)) if directory is not None else "",
            "report": self._unfinished(),
        }

    def _unfinished(self) -> str:
        """Why there is no report, empty where one can be made."""
        leader = self._view.leader
        if leader.run is None:
            return "no swarm has run yet: start one, then download its report"
        if leader.run.directory is None:
            return NO_FILES
        return "" if leader.current is None else "the swarm is not over: stop it first"

    def empty(self) -> dict[str, str]:
        """Why each table has nothing to give, by name; empty where it has something."""
        return {name: self._missing(name) or self._has_no_rows(name) for name in DOWNLOADS}

    def _missing(self, name: str) -> str:
        run = self._view.leader.run
        if run is None:
            return "no swarm has run yet: start one, then download its tables"
        if name == "contexts":
            return ""
        if run.directory is None:
            return NO_FILES
        if name == "batches" and run.directory.batches is None:
            return "this swarm has no batches.csv: its users send no batches"
        run.ledger.flush()
        path = self._path(name)
        return "" if path.exists() else f"{_utf8(str(path))} is no longer there"

    def _has_no_rows(self, name: str) -> str:
        if name == "contexts":
            has_rows = bool(self._view.all_contexts().rows(1))
        else:
            with self._path(name).open("rb") as file:
                has_rows = bool(file.readline() and file.read(1))
        return "" if has_rows else "no rows yet"

    def _path(self, name: str) -> Path:
        run = self._view.leader.run
        assert run is not None
        assert run.directory is not None  # asked for after `_missing`
        path: Path = run.directory.path / f"{name}.csv"
        return path

    def _contexts(self) -> str:
        table = self._view.all_contexts()
        rows = [
            (
                OTHERS if name is None else name,
                figures.requests,
                figures.failed,
                figures.ttft_ms.quantile(0.5),
                figures.ttft_ms.known_quantile(0.95),
                figures.prompt_tokens,
                table.cached_tokens(figures),
                table.cached_share(figures),
            )
            for name, figures in table.rows(MOST_CONTEXTS)
        ]
        return to_csv([CONTEXT_COLUMNS]) + to_csv(rows)


def _content(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes: whole rows, while the file grows on."""
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk


def _attachment(
    content: Iterator[bytes] | Iterator[str], filename: str, kind: str = "text/csv"
) -> Response:
    response = Response(content, mimetype=kind)
    response.headers.set("Content-Disposition", "attachment", filename=_utf8(filename))
    return response


def _utf8(name: str) -> str:
    """A folder's name need not be UTF-8, which pages are."""
    return name.encode(errors="replace").decode()


def _refusal(sentence: str) -> Response:
    return Response(f"{sentence}\n", 404, mimetype="text/plain")


MOST_DIGITS = 15
"""A JavaScript number holds as many exactly."""

_STATIC = Path(__file__).parent / "static"


class Pages:
    """Routes below `/kvswarm`, behind Locust's login where that is on."""

    def __init__(self, view: LiveView, web_ui: Any) -> None:
        self._view = view
        self._web_ui = web_ui
        self._downloads = Downloads(view)

    def add(self) -> None:
        """Add the routes to Locust's; called before anything is served."""
        web_ui = self._web_ui
        base = getattr(self._view.leader.environment.parsed_options, "web_base_path", None) or ""
        routes = Blueprint("kvswarm", __name__, url_prefix=f"{base}/kvswarm")
        self._route(routes, "/live", self._live)
        self._route(routes, "/static/<name>", self._file)
        self._route(routes, "/csv/<name>.csv", self._downloads.csv)
        self._route(routes, "/tables", self._tables)
        self._route(routes, "/report.html", self._downloads.report)
        self._route(routes, "/finished", self._finished)
        web_ui.app.register_blueprint(routes)

    def _route(self, routes: Blueprint, rule: str, view: Callable[..., Response]) -> None:
        protected = self._web_ui.auth_required_if_enabled(view)
        routes.add_url_rule(rule, view.__name__.strip("_"), protected)

    def _live(self) -> Response:
        """What the tab shows, as JSON: all points, or those after `epoch`, `since` and `mark`."""
        try:
            names = ("epoch", "step_s", "since", "mark")
            known = {name: _whole(name, request.args.get(name, "0")) for name in names}
        except ValueError as error:
            return Response(f"{error}\n", 400, mimetype="text/plain")
        return _json(self._view.answer(**known))

    def _tables(self) -> Response:
        """As JSON: why each table has nothing to give; an empty text where it has something"""
        return _json(self._downloads.empty())

    def _finished(self) -> Response:
        """As JSON: the directory of the last swarm, and why there is no report of it yet"""
        return _json(self._downloads.finished())

    def _file(self, name: str) -> Response:
        """The tab's script and style."""
        return send_from_directory(_STATIC, name, max_age=0)


def _json(answer: dict[str, Any]) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(answer), mimetype="application/json", headers=headers)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise ValueError(f"{name} must be a whole number from 0, not {text[:40]!r}")
    return int(text)
