"""Whose request is it? The rule that all servers of ours share, and its form for WSGI."""

import socket
from typing import Any

import pytest

from loadgen.swarm.leading.own_page import own_page_only
from rag_store.service.foreign import ANY, OwnNames, RequestSource

PORT = "8089"


def refusal(
    names: OwnNames,
    host: str | None,
    origin: str | None = None,
    target: str = "/swarm",
    **more: Any,
) -> str | None:
    """The code of the refusal of a POST, None where there is none."""
    headers: dict[str, list[str]] = {
        "Host": [] if host is None else [host],
        "Origin": [] if origin is None else [origin],
        "Sec-Fetch-Site": more.get("fetch_sites", []),
        "Sec-Fetch-Mode": more.get("fetch_modes", []),
        "Sec-Fetch-Dest": more.get("fetch_dests", []),
    }
    source = RequestSource(more.get("method", "POST"), target, headers.__getitem__)
    found = names.refusal(source)
    return None if found is None else found.code


@pytest.mark.parametrize("bind", ["", "*", "0.0.0.0", "127.0.0.1", "localhost", "192.0.2.7"])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (f"localhost:{PORT}", None),
        (f"127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT}"),
        (f"LocalHost:{PORT}", f"http://localhost:{PORT}"),
        (f"localhost.:{PORT}", f"http://localhost.:{PORT}"),
        (f"[::1]:{PORT}", f"http://[::1]:{PORT}"),
        ("localhost:9000", "http://localhost:9000"),  # a tunnel to this machine
        ("localhost", "https://localhost:443"),
    ],
)
def test_names_of_this_machine_are_own(bind: str, host: str, origin: str | None) -> None:
    assert refusal(OwnNames(bind), host, origin) is None


@pytest.mark.parametrize("bind", ["", "0.0.0.0", "127.0.0.1", "192.0.2.7"])
@pytest.mark.parametrize(
    "host",
    [
        f"evil.example:{PORT}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1.evil.example.",
        "203.0.113.9",
        "[2001:db8::1]",
        "localhost,evil.example",
        "localhost:8089:80",
        "localhost@evil.example",
        "user@localhost",
        "localhost/",
        "localhost:99999",
        "[::1",
        "",
        None,
    ],
)
def test_other_names_are_foreign(bind: str, host: str | None) -> None:
    assert refusal(OwnNames(bind), host) == "foreign_host"


def test_where_it_listens_is_own() -> None:
    assert refusal(OwnNames("192.0.2.7"), f"192.0.2.7:{PORT}") is None
    assert refusal(OwnNames("load.example"), f"LOAD.example:{PORT}") is None
    assert refusal(OwnNames("2001:db8::1"), f"[2001:db8::1]:{PORT}") is None
    long_form = OwnNames("FD00:0:0::0001")
    assert refusal(long_form, f"[fd00::1]:{PORT}", f"http://[fd00::1]:{PORT}") is None
    assert refusal(OwnNames("0:0:0:0:0:0:0:0"), f"[::]:{PORT}") is None
    everywhere = OwnNames("")
    assert refusal(everywhere, f"{socket.gethostname()}:{PORT}") is None
    assert refusal(everywhere, f"0.0.0.0:{PORT}", f"http://0.0.0.0:{PORT}") is None
    assert refusal(OwnNames("127.0.0.1"), f"0.0.0.0:{PORT}") == "foreign_host"


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        f"http://evil.example:{PORT}",
        f"http://localhost:{int(PORT) + 1}",
        "http://localhost",
        f"http://127.0.0.1:{PORT}",
        f"http://localhost:{PORT}.evil.example",
        f"http://localhost:{PORT}@evil.example",
        f"http://localhost:{PORT}/",
        f"file://localhost:{PORT}",
        f"chrome-extension://localhost:{PORT}",
        f"http://localhost:{PORT}, http://evil.example",
        f"http://evil.example#http://localhost:{PORT}",
    ],
)
def test_pages_of_others_are_foreign(origin: str) -> None:
    assert refusal(OwnNames(""), f"localhost:{PORT}", origin) == "foreign_origin"
    assert refusal(OwnNames("", (ANY,)), f"localhost:{PORT}", origin) == "foreign_origin"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Same-Origin", "", "x"])
def test_what_a_browser_says_of_its_page_is_heard(site: str) -> None:
    local, host = OwnNames(""), f"localhost:{PORT}"
    told: dict[str, Any] = {"fetch_sites": [site]}
    assert refusal(local, host, **told) == "foreign_page"
    link = told | {"fetch_modes": ["navigate"], "fetch_dests": ["document"]}
    for target in ("/", "/base/", "/?next=x", "/login"):
        assert refusal(local, host, target=target, **link, method="GET") is None, "a followed link"
        assert refusal(local, host, target=target, **link, method="POST") == "foreign_page"
    for target in ("/stop", "/stats/reset", "/kvswarm/report.html", "/stop?x=/"):
        assert refusal(local, host, target=target, **link, method="GET") == "foreign_page"
    assert refusal(local, host, **link, method="POST") == "foreign_page"
    frame = link | {"fetch_dests": ["iframe"]}
    assert refusal(local, host, **frame, method="GET") == "foreign_page"
    twice = {"fetch_sites": ["same-origin", site]}
    assert refusal(local, host, **twice) == "foreign_page"


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_own_pages_and_typed_addresses_are_own(site: str) -> None:
    assert refusal(OwnNames(""), "localhost", fetch_sites=[site]) is None


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/swarm?next=http://evil.example/", None),
        ("*", None),
        ("http://localhost:8089/swarm", None),
        ("http://evil.example/swarm", "foreign_host"),
        ("HTTP://evil.example/swarm", "foreign_host"),
        ("http://localhost:8089@evil.example/swarm", "foreign_host"),
        ("evil.example:80", "foreign_host"),
        ("ftp://localhost/swarm", "foreign_host"),
    ],
)
def test_a_request_line_that_names_a_host_is_held_to_it(target: str, code: str | None) -> None:
    assert refusal(OwnNames(""), "localhost:8089", target=target) == code


def test_two_hosts_are_none() -> None:
    headers = {"Host": ["localhost", "localhost"]}
    source = RequestSource("GET", "/", lambda name: headers.get(name, []))
    for names in (OwnNames(""), OwnNames("", (ANY,))):
        found = names.refusal(source)
        assert found is not None
        assert found.code == "foreign_host"


def test_allowed_names() -> None:
    names = OwnNames("127.0.0.1", ("Load.Example", "other.example:8443"))
    assert refusal(names, "load.example:1234") is None
    assert refusal(names, "other.example:8443", "https://other.example:8443") is None
    assert refusal(names, "other.example") == "foreign_host"
    addresses = OwnNames("127.0.0.1", ("fd00:0::1", "[fd00:0::2]:8443"))
    assert refusal(addresses, "[fd00::1]:1234") is None
    assert refusal(addresses, "[fd00::2]:8443") is None
    assert refusal(addresses, "[fd00::2]:1234") == "foreign_host"
    # A proxy asks by our address for a page under its own name.
    assert refusal(names, "127.0.0.1:8089", "https://load.example") is None
    assert refusal(names, "127.0.0.1:8089", "https://load.example:9999") == "foreign_origin"
    assert refusal(OwnNames("", (ANY,)), "any.example", "https://any.example") is None


def wsgi(names: OwnNames, **variables: str) -> tuple[str, dict[str, str], bytes]:
    """What an application that opens itself to all pages answers behind the guard."""
    answered: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Access-Control-Allow-Origin", "*"), ("Content-Type", "a/b")])
        return [b"secret"]

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", **variables}
    body = b"".join(own_page_only(app, names)(environ, lambda *each: answered.extend(each)))
    return answered[0], dict(answered[1]), body


def test_an_application_is_closed_to_other_pages() -> None:
    status, headers, body = wsgi(OwnNames(""), HTTP_HOST="localhost")
    assert (status, body) == ("200 OK", b"secret")
    assert headers == {
        "Content-Type": "a/b",
        "X-Frame-Options": "SAMEORIGIN",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    foreign = {"HTTP_HOST": "localhost", "HTTP_ORIGIN": "http://evil.example\n"}
    status, headers, body = wsgi(OwnNames(""), **foreign)
    assert status == "403 Forbidden"
    assert b"secret" not in body
    assert body.decode().removesuffix("\n").isprintable()
    assert not any(name.lower().startswith("access-control-") for name in headers)
