"""What Locust's own page gets from us: the tab, its downloads, and a form that keeps its values."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flask import Response, before_render_template, request

from loadgen.swarm.options.flags import FORM_OPTIONS

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader

TITLE = "KV cache"
KEY = "kv-cache"
SCRIPTS = (
    '<script src="./kvswarm/static/form.js"></script>'  # before Locust's own has drawn anything
    '<script type="module" src="./kvswarm/static/live.js"></script>'
)
DOWNLOADS: dict[str, str] = {
    "requests": "requests",
    "batches": "batches",
    "server_metrics": "server metrics",
    "client_metrics": "client metrics",
    "contexts": "per-context",
}


class LocustPage:
    """The page at `/`, as every browser gets it."""

    def __init__(self, leader: "Leader", web_ui: Any) -> None:
        self._leader = leader
        self._web_ui = web_ui
        self._process = str(time.time())

    def extend(self) -> None:
        """Add what is ours; called before anything is served."""
        args, app = self._web_ui.template_args, self._web_ui.app
        _extend(args, "extended_tabs", [{"title": TITLE, "key": KEY}])
        links = [
            {"href": f"./kvswarm/csv/{name}.csv", "title": f"Download kvswarm {title} CSV"}
            for name, title in DOWNLOADS.items()
        ]
        links.append({"href": "./kvswarm/report.html", "title": "Download kvswarm report HTML"})
        _extend(args, "extended_csv_files", links)
        app.jinja_env.policies["json.dumps_kwargs"] = {"sort_keys": False}
        before_render_template.connect(self._fill, app, weak=False)
        app.after_request(_with_scripts)

    def _fill(self, _app: Any, context: Mapping[str, Any], **_: Any) -> None:
        """The form has what the current or last swarm was given, and tells which process said so.

        Locust's own has what the command line said, by the alphabet.
        """
        page = context.get("template_args")
        if not page or "extra_options" not in page:
            return
        run = self._leader.current
        given = vars(self._leader.environment.parsed_options)
        values = given | dict(run.plan.options if run else {})
        page["extra_options"] = form_fields(page["extra_options"], values)
        page["process"] = self._process
        if self._leader.run is not None and page["num_users"] == 0:
            page["num_users"] = "0"  # an open loop without a cap; Locust's form makes 1 of 0


def form_fields(
    fields: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Locust's fields by option: ours first, in the order of the form, then a locustfile's own."""
    names = [name for name in FORM_OPTIONS if name in fields]
    names += [name for name in fields if name not in FORM_OPTIONS]
    return {
        name: {**fields[name], "default_value": values.get(name, fields[name]["default_value"])}
        for name in names
    }


def _extend(template_args: dict[str, Any], name: str, more: list[dict[str, str]]) -> None:
    template_args[name] = [*template_args.get(name, []), *more]


def _with_scripts(response: Response) -> Response:
    if request.endpoint == "locust.index" and response.status_code == 200:
        text = response.get_data(as_text=True)
        response.set_data(text.replace("</body>", f"{SCRIPTS}</body>", 1))
    return response
