"""Locust imported without its web stack, in processes of its own: an import happens once."""

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

import pytest

IMPORTED = """
import sys
from loadgen.swarm.lean_locust import import_locust
main = import_locust()
"""

MOVED = """
import sys
import loadgen.swarm.lean_locust as lean
lean.LATER = {later}
main = lean.import_locust()
import locust.env, locust.main, locust.runners, locust.web
assert main is locust.main.main
assert locust.env.WebUI is locust.web.WebUI
assert type(locust.env.WebUI) is type
assert locust.runners.UsersDispatcher.__module__ == "locust.dispatch"
"""


@pytest.mark.parametrize(
    "later",
    [
        [{"locust.web": ("Moved",)}],
        [
            {"locust.web": ("WebUI",)},
            {"locust.dispatch": ("UsersDispatcher",)},
            {"locust.user": ()},
        ],
        [{"gevent.pool": ("Group",)}],
    ],
    ids=["a name", "a base class", "a name of another"],
)
def test_a_locust_whose_inside_has_moved_is_imported_as_it_is(later: list[object]) -> None:
    subprocess.run([sys.executable, "-c", MOVED.format(later=later)], check=True, timeout=60)


def test_what_was_not_known_beforehand_is_asked_of_the_real_module() -> None:
    run("""
import locust.argument_parser
stand_in = locust.argument_parser.requests
assert stand_in.Session.__module__ == "requests.sessions"
assert stand_in.get.__module__ != "requests.api"
""")


def run(code: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", IMPORTED + code]
    subprocess.run(command, check=True, timeout=60, env=environment)


def test_locust_is_patched_and_whole_but_for_what_is_put_off() -> None:
    run("""
import gevent.monkey, locust.main
from importlib import metadata
assert main is locust.main.main
assert gevent.monkey.is_module_patched("socket")
absent = {"flask", "jinja2", "locust.web", "locust.html", "locust.clients", "requests", "urllib3"}
assert not absent & sys.modules.keys()
assert not hasattr(locust, "web")
assert metadata.entry_points.__module__ == "importlib.metadata"
""")


def test_what_was_put_off_is_there_for_who_asks() -> None:
    run("""
from locust.env import Environment
environment = Environment()
environment.create_local_runner()
shown = environment.create_web_ui("127.0.0.1", 0, delayed_start=True)
import locust.web
assert type(shown) is locust.web.WebUI
from locust.main import get_html_report
assert "<html" in get_html_report(environment, show_download_link=False).lower()
""")


def test_locusts_own_users_send_as_ever() -> None:
    run("""
import http.server, threading
from locust import FastHttpUser, HttpUser
from locust.env import Environment
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for kind in (HttpUser, FastHttpUser):
    kind.host = f"http://127.0.0.1:{server.server_port}"
    environment, seen = Environment(), []
    environment.events.request.add_listener(lambda **request: seen.append(request["name"]))
    user = kind(environment)
    assert "<title>" in user.client.get("/").text
    with user.rest("GET", "/nowhere") as answer:
        assert answer.status_code == 404
    assert seen == ["/", "/nowhere"]
import locust.clients, locust.user.users, requests
assert locust.user.users.HttpSession is locust.clients.HttpSession
assert locust.user.users.RequestException is requests.exceptions.RequestException
assert locust.argument_parser.requests is requests
""")


@pytest.mark.parametrize("skipped", [False, True])
def test_urllib3_is_patched_whoever_imports_it_unless_it_is_not_to_be(skipped: bool) -> None:
    code = """
import os, queue, gevent.queue
queue.LifoQueue = object  # which newer versions of gevent replace by theirs
import urllib3
patched = urllib3.connectionpool.ConnectionPool.QueueCls is gevent.queue.LifoQueue
assert patched is not bool(os.getenv("LOCUST_SKIP_URLLIB3_PATCH"))
"""
    run(code, {"LOCUST_SKIP_URLLIB3_PATCH": "1"} if skipped else {})


def test_entry_points_are_found_inside_as_outside() -> None:
    run("""
from importlib import metadata
from loadgen.swarm.lean_locust import _one_look_at_packages
groups = ("console_scripts", "gevent.plugins.monkey.will_patch_all")
outside = [set(metadata.entry_points(group=group)) for group in groups]
with _one_look_at_packages():
    assert [set(metadata.entry_points(group=group)) for group in groups] == outside
    assert all(outside)
    assert not metadata.entry_points(group="gevent.plugins.monkey.none")
""")


def test_a_swarm_imports_neither_aiohttp_nor_an_exporter_at_its_start() -> None:
    run("""
import dashboards.exporter, dashboards.live, loadgen.swarm.user
assert not {"aiohttp", "prometheus_client", "gevent.pywsgi", "flask"} & sys.modules.keys()
""")


def test_a_worker_parses_locusts_defaults_once_for_all_options() -> None:
    run("""
from unittest.mock import patch
from locust import argument_parser
fresh = argument_parser.default_args_dict()
from loadgen.swarm.plugin import parse_defaults_once
parse_defaults_once()
with patch.object(argument_parser, "get_empty_argument_parser", side_effect=AssertionError):
    assert all(argument_parser.default_args_dict() == fresh for _ in range(200))
""")
