"""The tab's place in Locust's web UI: its title, its script, its figures and its downloads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from flask import Blueprint, Response, request, send_from_directory

from dashboards.live_tab.downloads import DOWNLOADS, Downloads
from dashboards.live_tab.live_view import LiveView

TITLE = "KV cache"
KEY = "kv-cache"
SCRIPT = '<script type="module" src="./kvswarm/static/live.js"></script>'
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
        """Add tab, downloads and routes to Locust's; called before anything is served."""
        web_ui = self._web_ui
        _extend(web_ui.template_args, "extended_tabs", [{"title": TITLE, "key": KEY}])
        links = [
            {"href": f"./kvswarm/csv/{name}.csv", "title": f"Download kvswarm {title} CSV"}
            for name, title in DOWNLOADS.items()
        ]
        _extend(web_ui.template_args, "extended_csv_files", links)
        base = getattr(self._view.leader.environment.parsed_options, "web_base_path", None) or ""
        routes = Blueprint("kvswarm", __name__, url_prefix=f"{base}/kvswarm")
        self._route(routes, "/live", self._live)
        self._route(routes, "/static/<name>", self._file)
        self._route(routes, "/csv/<name>.csv", self._downloads.csv)
        web_ui.app.register_blueprint(routes)
        web_ui.app.after_request(_with_script)

    def _route(self, routes: Blueprint, rule: str, view: Callable[..., Response]) -> None:
        protected = self._web_ui.auth_required_if_enabled(view)
        routes.add_url_rule(rule, view.__name__.strip("_"), protected)

    def _live(self) -> Response:
        try:
            names = ("epoch", "step_s", "since", "mark")
            known = {name: _whole(name, request.args.get(name, "0")) for name in names}
        except ValueError as error:
            return Response(f"{error}\n", 400, mimetype="text/plain")
        answer = orjson.dumps(self._view.answer(**known))
        return Response(answer, mimetype="application/json", headers={"Cache-Control": "no-store"})

    def _file(self, name: str) -> Response:
        return send_from_directory(_STATIC, name, max_age=0)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise ValueError(f"{name} must be a whole number from 0, not {text[:40]!r}")
    return int(text)


def _extend(template_args: dict[str, Any], name: str, more: list[dict[str, str]]) -> None:
    template_args[name] = [*template_args.get(name, []), *more]


def _with_script(response: Response) -> Response:
    """Locust's page with our script in it."""
    if request.endpoint == "locust.index" and response.status_code == 200:
        text = response.get_data(as_text=True)
        response.set_data(text.replace("</body>", f"{SCRIPT}</body>", 1))
    return response
