"""Which requests come from somebody else's web page, for any server of ours.

A page in the user's browser reaches what the user's machine reaches. It gives itself away by the
`Origin` that browsers name, by `Sec-Fetch-Site`, or by a `Host` that is not ours: a page can let
its own name lead here, and is then no other's (DNS rebinding).
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

ANY = "*"
"""As an allowed name: whatever name a proxy or an address book has for this server."""

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/?#@,\\]+)(?::(\d{1,5})?)?")
_ADDRESS = re.compile(r"(https?)://([^/?#\\]*)", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_WILDCARDS = ("", "*", "0.0.0.0", "::")
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class RequestSource:
    """What a request says of where it comes from.

    `values` gives every value of the header with a name, in their order.
    """

    method: str
    target: str
    values: Callable[[str], Sequence[str]]

    @property
    def is_visit(self) -> bool:
        """Whether somebody followed a link to the first page or its log-in, which start and change
        nothing: the page with that link sees nothing of the answer."""
        return (
            self.method in ("GET", "HEAD")
            and self.target.partition("?")[0].endswith(("/", "/login"))
            and list(self.values("Sec-Fetch-Mode")) == ["navigate"]
            and list(self.values("Sec-Fetch-Dest")) == ["document"]
        )


@dataclass(frozen=True, slots=True)
class ForeignRequest:
    """Why a request is refused: a code for programs, a sentence for people."""

    code: str
    message: str


class OwnNames:
    """The names under which a server is called by its own user.

    Those that always lead to this machine, the address it listens on, and `allowed`: `name` or
    `name:port`. Where it listens on all addresses, this machine's name and addresses too.
    """

    def __init__(self, bind: str, allowed: Iterable[str] = (), option: str = "--bind") -> None:
        """`option` is what a refusal tells to use."""
        self._option = option
        self._allowed = frozenset(map(_name, allowed))
        self._bind = _name(bind)

    def refusal(self, source: RequestSource) -> ForeignRequest | None:
        """Why a request is refused, None for one of our own."""
        hosts, sites = source.values("Host"), source.values("Sec-Fetch-Site")
        host = ",".join(hosts)
        for asked in (host, *_target_authority(source.target)):
            if len(hosts) > 1 or not self._is_own(asked):
                wish = f"ask localhost, or {self._option} that name"
                return ForeignRequest("foreign_host", f"Host is {_shown(asked)}: {wish}")
        for origin in source.values("Origin"):
            if not self._is_own_page(origin, host):
                wish = "send the one of the Host that is asked, or none"
                return ForeignRequest("foreign_origin", f"Origin is {_shown(origin)}: {wish}")
        if not source.is_visit and set(sites) - {"same-origin", "none"}:
            told = f"Sec-Fetch-Site is {_shown(','.join(sites))}: ask from a page of this server"
            return ForeignRequest("foreign_page", told)
        return None

    def _is_own(self, authority: str) -> bool:
        if ANY in self._allowed:
            return True
        found = _AUTHORITY.fullmatch(authority)
        if found is None or int(found[2] or 0) > 65535:
            return False
        name = _name(found[1])
        if is_loopback(name) or {name, _name(authority)} & {self._bind, *self._allowed}:
            return True
        return self._bind in _WILDCARDS and name in (*_WILDCARDS, *_names_of_machine())

    def _is_own_page(self, origin: str, host: str) -> bool:
        found = _ADDRESS.fullmatch(origin)
        if found is None:
            return False
        # Behind a proxy that asks us under another name, pages still have the proxy's.
        ours = (_place(each, found[1]) for each in (host, *(self._allowed - {ANY})))
        page = _place(found[2], found[1])
        return page is not None and page in ours


def is_loopback(name: str) -> bool:
    """Whether the name or address always leads to this machine itself."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _target_authority(target: str) -> list[str]:
    """The host that a request line names itself, as to a proxy, which Host does not overrule."""
    if target.startswith("/") or target == "*":
        return []
    found = _ADDRESS.match(target)
    return [found[2] if found else target]


def _place(authority: str, scheme: str) -> tuple[str, int] | None:
    """Host and port; one that is left out is that of the scheme. None for what names none."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    return _name(found[1]), int(found[2] or _PORTS[scheme.lower()])


def _name(host: str) -> str:
    """In one spelling: addresses in their short form and, where no port follows, without brackets;
    names without the dot of the root."""
    address, _, port = host.lower().partition("]")
    name = address.lstrip("[").removesuffix(".")
    with suppress(ValueError):
        name = str(ipaddress.ip_address(name))
    return f"[{name}]{port}" if port else name


@cache
def _names_of_machine() -> set[str]:
    import psutil  # for those that listen on all addresses

    addresses = (each.address for found in psutil.net_if_addrs().values() for each in found)
    names = (socket.gethostname(), socket.getfqdn())
    return {_name(each.partition("%")[0]) for each in (*addresses, *names)}


def _shown(value: str) -> str:
    return f"{value[:_SHOWN_CHARS]!a}"
