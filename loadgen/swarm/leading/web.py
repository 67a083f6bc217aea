"""Locust's web UI: a swarm is prepared before it starts, and a refusal is shown in the form."""

import logging
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from flask import after_this_request, jsonify, request
from locust.argument_parser import get_parser, ui_extra_args_dict
from locust.runners import STATE_CLEANUP, STATE_RUNNING, STATE_SPAWNING, STATE_STOPPING

from loadgen.errors import KvswarmError, UsageError
from loadgen.swarm.leading.leader import Leader
from loadgen.swarm.leading.own_page import own_page_only
from loadgen.swarm.showing.locust_csv import PreciseStatsCSV
from loadgen.swarm.showing.stats_rows import KIND, three_digits
from rag_store.service.foreign import OwnNames

logger = logging.getLogger(__name__)

OPTION_OF_FIELD = {"user_count": "num_users"}
"""Where Locust's form names a field otherwise than its option."""
FIELDS_OF_LOCUST = frozenset(
    ("user_count", "spawn_rate", "host", "run_time", "profile", "user_classes", "shape_class")
)


def prepare_before_swarm(leader: Leader, web_ui: Any) -> None:
    """Put our checks before Locust's own answers to requests and forms; mend its statistics."""
    options = leader.environment.parsed_options
    display = urlsplit(options.web_host_display_name or "").netloc
    allowed = (*(options.web_allowed_host or ()), *([display] if display else ()))
    names = OwnNames(options.web_host, allowed, "start with --web-allowed-host and")
    web_ui.app.wsgi_app = own_page_only(web_ui.app.wsgi_app, names)
    web_ui.stats_csv_writer = PreciseStatsCSV(
        leader.environment, web_ui.stats_csv_writer.percentiles_to_report
    )
    web_ui.app.before_request(SwarmFormCheck(leader).check)
    web_ui.app.after_request(partial(_mend_statistics, leader))


class SwarmFormCheck:
    """Lets a submitted form through to Locust when its swarm may start: one at a time."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._busy = False

    def check(self) -> Any:
        """None lets the request through; an answer refuses it, and the form shows why."""
        if request.endpoint != "locust.swarm":
            return None
        host = request.form.get("host")
        try:
            self._check_fields()
            values = form_values(request.form, get_parser().args_included_in_web_ui)
            if self._is_edit():
                self._check_edit(values)
            else:
                self._prepare(values, host)
        except KvswarmError as error:
            logger.warning("%s", error)  # Locust's form for editing closes without showing it
            return jsonify({"success": False, "message": str(error), "host": host})
        return None

    def _check_fields(self) -> None:
        """Raise UsageError for what the form does not show, as paths and what may be a key."""
        shown = FIELDS_OF_LOCUST | ui_extra_args_dict().keys()
        for field in sorted(request.form.keys() - shown):
            raise UsageError(f"the form has no field {field[:40]!a}: give it on the command line")

    def _is_edit(self) -> bool:
        """Whether the form changes the number of users of a swarm that goes on."""
        running = self._leader.environment.runner.state in (STATE_RUNNING, STATE_SPAWNING)
        run = self._leader.current
        return running and not (run is not None and run.is_stopping)

    def _check_edit(self, values: Mapping[str, Any]) -> None:
        run = self._leader.current
        if run is None:
            return
        options = run.plan.options
        check_cap(values, options)
        # A page loaded anew shows the command line's options, whatever the swarm was given.
        shown = {name: field["default_value"] for name, field in ui_extra_args_dict().items()}
        for name in changed_options(values, options, shown):
            logger.warning("%s of a running swarm cannot change: start a new one", _flag(name))

    def _prepare(self, values: Mapping[str, Any], host: str | None) -> None:
        # Two swarms at once would share one plan: a second click must not start another.
        if self._busy or self._leader.current is not None:
            raise UsageError("the last swarm is still starting or stopping: wait for it")
        self._busy = True
        after_this_request(self._leave)
        self._leader.prepare(values, host, self._picked())

    def _picked(self) -> list[type] | None:
        """The user classes of the form, which Locust takes up afterwards; None without a picker."""
        environment = self._leader.environment
        if not environment.parsed_options.class_picker:
            return None
        names = request.form.getlist("user_classes")
        known = environment.available_user_classes
        return [each for name, each in known.items() if not names or name in names]

    def _leave(self, response: Any) -> Any:
        self._busy = False
        return response


def form_values(form: Mapping[str, str], actions: Mapping[str, Any]) -> dict[str, Any]:
    """A form's fields as the command line would have parsed them, by option.

    `actions` are those of Locust's parser by option. What does not parse stays text, for its own
    reader to refuse. Raises UsageError for a number that was left empty.
    """
    names = {field: OPTION_OF_FIELD.get(field, field) for field in form}
    return {name: _parsed(form[field], name, actions.get(name)) for field, name in names.items()}


def check_cap(values: Mapping[str, Any], running: Mapping[str, Any]) -> None:
    """Raise UsageError for a running open loop that is to get its first user or lose its last."""
    capped, wanted = bool(running.get("num_users")), bool(values.get("num_users"))
    if running.get("arrivals") != "closed" and capped != wanted:
        raise UsageError("the cap of an open loop cannot come or go: stop it and start a new one")


def changed_options(
    values: Mapping[str, Any], running: Mapping[str, Any], shown: Mapping[str, Any]
) -> Iterable[str]:
    """The options of a form for editing that its user has changed: a swarm cannot take them up.

    `running` are the swarm's options, `shown` those of a form that nobody has touched.
    """
    names = sorted(shown.keys() & values.keys() - {"header"})
    return [name for name in names if values[name] not in (running.get(name), shown[name])]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parsed(text: str, name: str, action: Any) -> Any:
    if action is None:
        return text
    if isinstance(action.default, bool):
        return text == "true"
    if not text and action.default is None:
        return None
    if not text and action.type in (int, float):
        raise UsageError(f"{_flag(name)} is empty: give a number")
    try:
        return action.type(text) if action.type else text
    except ArgumentTypeError as error:
        raise UsageError(f"{_flag(name)}: {error}") from None
    except ValueError:
        return text


def _mend_statistics(leader: Leader, response: Any) -> Any:
    """Locust's page asks again only while it reads of a running swarm: it must see it end.

    Otherwise a page that asked during the drain time would show `cleanup` for ever. And our rows
    keep their smallest and largest value, which Locust cuts to whole numbers.
    """
    if not request.path.endswith("/stats/requests") or not response.is_json:
        return response
    report = response.get_json()
    over = leader.current is None and report["state"] not in (STATE_CLEANUP, STATE_STOPPING)
    if not over and report["state"] != STATE_SPAWNING:
        report["state"] = STATE_RUNNING
    for row in report["stats"]:
        entry = leader.environment.stats.entries.get((row["name"], row["method"]))
        if entry is not None and entry.method == KIND:
            row["min_response_time"] = three_digits(entry.min_response_time or 0.0)
            row["max_response_time"] = three_digits(entry.max_response_time)
    return jsonify(report)
