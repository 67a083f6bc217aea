"""A light client beside heavy ones on one link, with each scheduler: on a counted clock, and over
sockets through the proxy to a real node.

Clients are closed loops: a heavy one asks again when its reply is there, the light one a while
later. Both ways have the same sizes, rate and number of clients.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kv_tiers.link import (
    SCHEDULERS,
    LinkProxy,
    LinkReport,
    LinkScheduler,
    LinkSettings,
    RateSchedule,
    WaitingBytes,
    jain_index,
)
from kv_tiers.link.proxy import HOST, PIECE_BYTES
from kv_tiers.link.rate import BYTES_PER_MBIT
from kv_tiers.link.report import percentile
from kv_tiers.store import StoreNode, valkey_server
from kv_tiers.store.nodes import split_address
from kv_tiers.trials.figures import NetworkFigure

QUESTION = "link"
COUNTED, SOCKET, STREAM = "counted clock", "sockets", "a heavy client beside many light ones"
LIGHT, MANY = "light", 8
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """`heavy` clients with replies of `heavy_bytes`, `light` ones which ask again after a pause;
    `counted_s` and `socket_s` of the link's time with each scheduler."""

    rate_mbit: float = 100.0
    heavy: int = 8
    light: int = 1
    heavy_bytes: int = 512 * 1024
    light_bytes: int = 32 * 1024
    pause_s: float = 0.05
    counted_s: float = 120.0
    socket_s: float = 20.0

    @property
    def piece_s(self) -> float:
        """Of the link's time."""
        return PIECE_BYTES / (self.rate_mbit * BYTES_PER_MBIT)

    def size(self, client: str) -> int:
        """Bytes of each of its replies."""
        return self.light_bytes if is_light(client) else self.heavy_bytes

    def clients(self) -> list[str]:
        """Light ones first."""
        light = (f"{LIGHT} {at}" for at in range(self.light))
        return [*light, *(f"heavy {at}" for at in range(self.heavy))]


def is_light(client: str) -> bool:
    """By its name."""
    return client.startswith(LIGHT)


def share_counted(plan: SharingPlan) -> Iterator[NetworkFigure]:
    """Each scheduler without a machine's noise; `fair_share` is what one heavy client has beside
    many light ones that never pause, over an even share; `drawn_ratio` how much more often the
    lottery draws a client with next to nothing than one of those that wait for nearly all."""
    for name, make in SCHEDULERS.items():
        link = CountedLink(plan, make())
        link.run()
        yield from _rows(name, COUNTED, link.times_s, link.jain, link.utilisation)
    stream = replace(plan, heavy=1, light=MANY, pause_s=0.0, counted_s=plan.counted_s / 4)
    for name, make in SCHEDULERS.items():
        link = CountedLink(stream, make())
        link.run()
        yield NetworkFigure(QUESTION, name, STREAM, "fair_share", link.heavy_share * (MANY + 1))
    for heavy in (1, plan.heavy):
        yield NetworkFigure(
            QUESTION, "lottery", f"{heavy} heavy", "drawn_ratio", math.exp(1 / heavy)
        )


async def share_sockets(plan: SharingPlan) -> AsyncIterator[NetworkFigure]:
    """Each scheduler in front of a valkey node. Raises ServerError."""
    for name in SCHEDULERS:
        report = await _socket_trial(plan, name)
        times = {
            client: figures.times_s()
            for client, figures in zip(plan.clients(), report.clients, strict=True)
        }
        for row in _rows(name, SOCKET, times, report.jain, report.utilisation_down):
            yield row


def _rows(
    name: str,
    setting: str,
    times_s: dict[str, list[float]],
    jain: float | None,
    utilisation: float,
) -> Iterator[NetworkFigure]:
    kinds: dict[str, list[float]] = {"light": [], "heavy": []}
    for client, own in times_s.items():
        kinds["light" if is_light(client) else "heavy"] += own
    figures = {"jain": math.nan if jain is None else jain, "utilisation": utilisation}
    for kind, times in kinds.items():
        figures |= {
            f"{kind}_p50_ms": 1000 * percentile(times, 0.5),
            f"{kind}_p99_ms": 1000 * percentile(times, 0.99),
            f"{kind}_exchanges": float(len(times)),
        }
    for measure, value in figures.items():
        yield NetworkFigure(QUESTION, name, setting, measure, value)


@dataclass(slots=True)
class _CountedClient:
    pieces: deque[int] = field(default_factory=deque)
    """Numbers of arrival of what waits."""
    asked_s: float = 0.0
    next_s: float = 0.0
    sent_pieces: int = 0
    wanted_s: float = 0.0
    times_s: list[float] = field(default_factory=list)


class CountedLink:
    """A link whose clock goes on by the pieces it sends, and to the next request where none
    waits."""

    def __init__(self, plan: SharingPlan, scheduler: LinkScheduler) -> None:
        self._plan, self._scheduler = plan, scheduler
        self._now_s, self._idle_s, self._arrivals = 0.0, 0.0, 0
        self._clients = {name: _CountedClient() for name in plan.clients()}

    @property
    def times_s(self) -> dict[str, list[float]]:
        """Of each client's exchanges."""
        return {name: each.times_s for name, each in self._clients.items()}

    @property
    def jain(self) -> float | None:
        """Of the bytes a second that clients had while they waited for any."""
        served = [each for each in self._clients.values() if each.wanted_s]
        return jain_index([each.sent_pieces * PIECE_BYTES / each.wanted_s for each in served])

    @property
    def heavy_share(self) -> float:
        """Of all bytes, those of heavy clients."""
        sent = {name: each.sent_pieces for name, each in self._clients.items()}
        heavy = sum(pieces for name, pieces in sent.items() if not is_light(name))
        return heavy / sum(sent.values())

    @property
    def utilisation(self) -> float:
        """The share of time in which something was sent."""
        return 1 - self._idle_s / self._now_s

    def run(self) -> None:
        """For the time of the plan."""
        while self._now_s < self._plan.counted_s:
            self._ask()
            waiting = {name: self._waiting(each) for name, each in self._clients.items()}
            some = {name: each for name, each in waiting.items() if each.pieces}
            if some:
                self._send(self._scheduler.choose(some))
            else:
                next_s = min(each.next_s for each in self._clients.values())
                self._idle_s += next_s - self._now_s
                self._now_s = next_s

    def _ask(self) -> None:
        for name, client in self._clients.items():
            if client.pieces or client.next_s > self._now_s:
                continue
            client.asked_s = max(client.next_s, 0.0)
            for _ in range(math.ceil(self._plan.size(name) / PIECE_BYTES)):
                self._arrivals += 1
                client.pieces.append(self._arrivals)

    def _waiting(self, client: _CountedClient) -> WaitingBytes:
        pieces = len(client.pieces)
        first = client.pieces[0] if pieces else 0
        return WaitingBytes(PIECE_BYTES, PIECE_BYTES * pieces, pieces, first)

    def _send(self, name: str) -> None:
        client = self._clients[name]
        client.pieces.popleft()
        client.sent_pieces += 1
        self._now_s += self._plan.piece_s
        if not client.pieces:
            client.times_s.append(self._now_s - client.asked_s)
            client.wanted_s += self._now_s - client.asked_s
            client.next_s = self._now_s + (self._plan.pause_s if is_light(name) else 0.0)


async def _socket_trial(plan: SharingPlan, name: str) -> LinkReport:
    settings = LinkSettings(RateSchedule.fixed(plan.rate_mbit), SCHEDULERS[name])
    clients = plan.clients()
    async with valkey_server() as (address, _):
        await _fill(address, plan)
        proxy = LinkProxy(settings, [0] * len(clients), *split_address(address))
        async with proxy:
            nodes = [StoreNode(f"{HOST}:{port}", deadline_s=DEADLINE_S) for port in proxy.ports]
            for node in nodes:  # so that the report has them in this order
                await node.get(b"nothing")
            try:
                await _load(plan, clients, nodes)
                return proxy.report()
            finally:
                await asyncio.gather(*(node.aclose() for node in nodes))


async def _fill(address: str, plan: SharingPlan) -> None:
    node = StoreNode(address, deadline_s=DEADLINE_S)
    for client in plan.clients():
        await node.put(client.encode(), bytes(plan.size(client)))
    await node.aclose()


async def _load(plan: SharingPlan, clients: Sequence[str], nodes: Sequence[StoreNode]) -> None:
    """All ask until the time is over, and have what they asked for by then."""
    until_s = time.monotonic() + plan.socket_s

    async def ask(client: str, node: StoreNode) -> None:
        while time.monotonic() < until_s:
            await node.get(client.encode())
            await asyncio.sleep(plan.pause_s if is_light(client) else 0)

    await asyncio.gather(*map(ask, clients, nodes))
