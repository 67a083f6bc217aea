"""A regional store before a central one behind a slow link, on real nodes: what reads and writes
take, what is left when either is lost, and for how long a region is stale.

Periods of synchronisation are counted and nobody waits for them.
"""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from kv_tiers.codecs import CODECS, pack
from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule
from kv_tiers.link.proxy import HOST
from kv_tiers.store import CentralSync, RegionalStore, ShardedStore, StoreKey, valkey_servers
from kv_tiers.store.nodes import split_address
from kv_tiers.trials.figures import NetworkFigure

QUESTION = "regions"
CENTRAL, REGIONAL, LATEST = STORES = "centre alone", "regional", "regional, centre asked first"
ROUNDS, PULLS, EXCHANGES = WAYS = "rounds of the centre", "pulls", "exchanges"
WRITING, FIRST, AGAIN = "writing", "reading", "reading again"
REGION_LOST, CENTRE_LOST = "region lost", "centre lost"
DELETED = "after a deletion"
REGIONS, SMALL_BYTES, DEADLINE_S = 3, 64, 10.0


@dataclass(frozen=True, slots=True)
class RegionsPlan:
    """`chunks` over a link with `latency_ms` each way, and `deletions` in one of REGIONS that each
    synchronise every `period_s`."""

    rate_mbit: float = 200.0
    latency_ms: float = 10.0
    chunks: int = 24
    chunk_bytes: int = 262_144
    deletions: int = 200
    period_s: float = 10.0


async def read_regions(plan: RegionsPlan) -> AsyncIterator[NetworkFigure]:
    """`chunk_ms` and `link_bytes` of a chunk, and `hit_share`, by what is done. Raises
    ServerError."""
    for lost in (CENTRE_LOST, REGION_LOST):
        for subject in STORES:
            if (subject, lost) != (CENTRAL, REGION_LOST):
                for row in await _life(plan, subject, lost):
                    yield row


async def _life(plan: RegionsPlan, subject: str, lost: str) -> list[NetworkFigure]:
    """Of a store between its first write and the loss of a node."""
    rows, repeat = list[NetworkFigure](), int(lost == REGION_LOST)
    schedule = RateSchedule.fixed(plan.rate_mbit)
    link = LinkSettings(schedule, SCHEDULERS["fifo"], plan.latency_ms)
    new, known = (
        [StoreKey.alone(b"%s %d" % (kind, n)) for n in range(plan.chunks)]
        for kind in (b"new", b"known")
    )
    async with AsyncExitStack() as stack:
        (near, of_region), (far, of_centre) = await stack.enter_async_context(
            valkey_servers([None, None])
        )
        proxy = await stack.enter_async_context(LinkProxy(link, [0], *split_address(far)))
        region, centre, direct = (
            ShardedStore([each], node_deadline_s=DEADLINE_S)
            for each in (near, f"{HOST}:{proxy.ports[0]}", far)
        )
        for each in (region, centre, direct):
            stack.push_async_callback(each.aclose)
        regional = RegionalStore(region, centre, force_latest=subject == LATEST)
        await stack.enter_async_context(regional)
        store: ShardedStore | RegionalStore = centre if subject == CENTRAL else regional

        async def measure(setting: str, names: Sequence[StoreKey]) -> None:
            begun_s, sent, done = time.monotonic(), _down_bytes(proxy), 0
            for name in names:
                if setting == WRITING:
                    done += await store.put(name, _frame(name, plan.chunk_bytes)) > 0
                else:
                    done += await store.get(name) is not None
            elapsed_s = time.monotonic() - begun_s
            await regional.settled()
            while regional.waiting and await regional.write_back():
                pass
            for figure, value in (
                ("chunk_ms", 1000 * elapsed_s / len(names)),
                ("hit_share", done / len(names)),
                ("link_bytes", (_down_bytes(proxy) - sent) / len(names)),
            ):
                rows.append(NetworkFigure(QUESTION, subject, setting, figure, value, repeat))

        for name in known:  # in another region
            await direct.put(name, _frame(name, plan.chunk_bytes))
        await measure(WRITING, new)
        await measure(FIRST, known)
        await measure(AGAIN, known)
        process = of_centre if lost == CENTRE_LOST else of_region
        process.kill()
        await process.wait()
        await measure(lost, known)
    return rows


def _down_bytes(proxy: LinkProxy) -> int:
    return sum(client.down_bytes for client in proxy.report().clients)


def _frame(name: StoreKey, size: int) -> bytes:
    bits = np.zeros((1, 2, 1, size // 4), dtype=np.uint16)
    return pack(CODECS["raw"](), bits, name.key)


async def stale_regions(plan: RegionsPlan) -> AsyncIterator[NetworkFigure]:
    """`longest_s` and `mean_s` until a deletion is known in all other regions, and `apart_s`, for
    how long at most only some knew, by way of synchronising. Raises ServerError."""
    for way in WAYS:
        rng = random.Random(0)
        async with valkey_servers([None] * (1 + REGIONS)) as servers:
            world = _SyncedRegions(plan, [address for address, _ in servers])
            heard = [await world.heard_s(way, at, rng) for at in range(plan.deletions)]
            await world.aclose()
        for measure, value in (
            ("longest_s", max(map(max, heard))),
            ("mean_s", fmean(map(max, heard))),
            ("apart_s", max(max(each) - min(each) for each in heard)),
            ("period_s", plan.period_s),
        ):
            yield NetworkFigure(QUESTION, way, DELETED, measure, value)


class _SyncedRegions:
    def __init__(self, plan: RegionsPlan, nodes: Sequence[str]) -> None:
        self._plan, self._now_s = plan, 0.0
        self._stores = [ShardedStore([node], node_deadline_s=DEADLINE_S) for node in nodes]
        centre, *self._regions = self._stores
        self._clients = [
            RegionalStore(region, centre, clock=lambda: self._now_s) for region in self._regions
        ]
        self._sync = CentralSync(centre, dict(zip(nodes[1:], self._regions, strict=True)))

    async def heard_s(self, way: str, number: int, rng: random.Random) -> list[float]:
        """After a deletion in the first region, when each other one has heard of it."""
        name, period_s = StoreKey.alone(b"chunk %d" % number), self._plan.period_s
        for store in self._stores:
            await store.put(name, _frame(name, SMALL_BYTES))
        self._now_s += 3 * period_s
        await self._clients[0].delete(name)
        if way != EXCHANGES:
            await self._clients[0].write_back()
        phases = [rng.uniform(0, period_s) for _ in self._clients]
        steps = [(phases[who] + n * period_s, who) for who in range(REGIONS) for n in range(2)]
        heard: dict[int, float] = {}
        for after_s, who in sorted(steps):
            if way == EXCHANGES:
                await self._clients[who].exchange()
            elif way == PULLS:
                await self._clients[who].pull()
            elif who == 0:  # a clock for all
                await self._sync.round()
            for at, region in enumerate(self._regions[1:]):
                if at not in heard and await region.known([name]) == [False]:
                    heard[at] = after_s
        return [*heard.values()]

    async def aclose(self) -> None:
        for store in self._stores:
            await store.aclose()
