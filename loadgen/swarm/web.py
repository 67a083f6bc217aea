"""Locust's web UI: a swarm is prepared before it starts, and a refusal is shown in the form."""

from typing import Any

from flask import jsonify, request
from locust.runners import STATE_RUNNING, STATE_SPAWNING

from loadgen.errors import KvswarmError
from loadgen.swarm.leader import Leader
from loadgen.swarm.locust_csv import PreciseStatsCSV


def prepare_before_swarm(leader: Leader, web_ui: Any) -> None:
    """Put our checks before Locust's own answer to a submitted form."""
    web_ui.stats_csv_writer = PreciseStatsCSV(
        leader.environment, web_ui.stats_csv_writer.percentiles_to_report
    )
    web_ui.app.before_request(lambda: _check_swarm(leader))


def _check_swarm(leader: Leader) -> Any:
    if request.method != "POST" or not request.path.endswith("/swarm"):
        return None
    if leader.environment.runner.state in (STATE_RUNNING, STATE_SPAWNING):
        return None  # an edit of the number of users
    try:
        leader.prepare(request.form.to_dict(), request.form.get("host"))
    except KvswarmError as error:
        return jsonify({"success": False, "message": str(error), "host": request.form.get("host")})
    return None
