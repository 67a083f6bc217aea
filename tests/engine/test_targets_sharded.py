"""Two engines through the same nodes of a store: real vLLM, LMCache and valkey.

KV moves behind a scarce link and back, and a node dies; texts stay.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from store_engines import (
    CHUNK_TOKENS,
    CHUNKS,
    NO_DEADLINE_S,
    PROMPT_TOKENS,
    Engine,
    counted,
    empty_memory,
    first_logprobs,
    from_nodes,
    hits,
    kept,
    reply,
    started,
    value_bytes,
)
from tokenizers import Tokenizer

from dashboards.studies.corpora import library_texts
from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule
from kv_tiers.link.schedulers.scheduler import LinkScheduler, WaitingBytes
from kv_tiers.store import valkey_servers
from kv_tiers.store.adaptive import LEVELS
from kv_tiers.store.nodes import split_address
from loadgen.cli.main import main
from loadgen.targets.demo_model import build_model
from loadgen.targets.target import RunningTarget
from loadgen.targets.valkey_nodes import BYTES

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1300),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPTS = range(4)
LINK_MBIT, SHORT_DEADLINES_S = 50.0, (0.5, 0.7, 0.9)
"""In the first the link carries no whole context without loss, not even for one engine alone; in
none it does so for two. On a busy machine decoding takes part of it."""
EXACT_TOKEN_BYTES = 4096
"""8 layers of keys and values of 2 heads of 64, two bytes each."""
LEAST_CONTEXT_BYTES = CHUNKS * CHUNK_TOKENS * EXACT_TOKEN_BYTES // 2
"""The codec loses nothing."""
MOST_OFF_NATS = 0.3
"""Of log-probabilities of a model with random weights: about twice what was seen at level 1."""


class Switched(LinkScheduler):
    """Whichever is set at the time, of both directions of a link."""

    name = "fifo"
    choices = 0
    """With several clients waiting."""

    def __init__(self) -> None:
        self._each = {name: make() for name, make in SCHEDULERS.items()}

    def choose(self, waiting: Mapping[str, WaitingBytes]) -> str:
        Switched.choices += len(waiting) > 1
        return self._each[Switched.name].choose(waiting)


@dataclass(frozen=True, slots=True)
class BehindLink:
    """What tests of it need: replies to PROMPTS from the engine's own cache, the node, and those
    where all was before."""

    link: LinkProxy
    cached: list[dict[str, Any]]
    node: str
    before: list[str]

    def down_bytes(self) -> list[int]:
        """Of each engine."""
        by_name = {each.name: each.down_bytes for each in self.link.report().clients}
        return [by_name.get(f"port {port}", 0) for port in self.link.ports]

    @property
    def port(self) -> str:
        """The node's."""
        return self.node.rpartition(":")[2]

    async def keys(self) -> int:
        async with Redis.from_url(f"redis://{self.node}", protocol=2) as client:
            return int(await client.dbsize())

    async def holds(self, keys: int) -> None:
        """Return once it does: they are written behind the reply."""
        for _ in range(1200):
            if await self.keys() >= keys:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{await self.keys()} of {keys} keys")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"), "tiny", ["A text to learn from. " * 20])


@pytest.fixture(scope="module")
def profile(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model's KV, as `kvswarm kv codecs` writes it."""
    out = tmp_path_factory.mktemp("codecs")
    words = ["--texts", "2", "--prompt-tokens", "256", "--read-tokens", "1", "--out", str(out)]
    assert main(["kv", "codecs", "--model", str(model), *words]) == 0
    return out / "cachegen.json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def east(
    not_compiled: None, model: Path, profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    async with started(model, tmp_path_factory.mktemp("east"), profile=profile) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def west(
    east: Engine, model: Path, profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    """A second engine with its own LMCache, and the nodes of the first."""
    nodes = (await east.status())["nodes"]
    async with started(model, tmp_path_factory.mktemp("west"), nodes, profile) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind_link(east: Engine, west: Engine) -> AsyncIterator[BehindLink]:
    """All KV moves to one node behind a link. Each engine has a port of the link for itself, and so
    is one client of it."""
    _, cached = await replies(east.target)
    nodes = (await east.status())["nodes"]
    settings = LinkSettings(RateSchedule.fixed(LINK_MBIT), Switched, latency_ms=1)
    async with (
        valkey_servers([None]) as ((node, _),),
        LinkProxy(settings, [0, 0], *split_address(node)) as link,
    ):
        ends = [[f"127.0.0.1:{port}"] for port in link.ports]
        await asyncio.gather(east.change(nodes=ends[0]), west.change(nodes=ends[1]))
        yield BehindLink(link, cached, node, nodes)


async def replies(target: RunningTarget) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of all prompts as computed, and as they are with their prefix in the engine's own cache: in
    bfloat16 the two may differ after some tokens. Afterwards all is on nodes only."""
    assert await target.make_cold() == "cold"
    computed, cached = [], []
    for start in PROMPTS:
        computed.append(await reply(target, start))
        cached.append(await reply(target, start))
    await kept(target, CHUNKS * len(PROMPTS))
    await empty_memory(target)
    return computed, cached


async def test_prompts_come_back_from_the_nodes_as_they_were(east: Engine) -> None:
    target = east.target
    computed, cached = await replies(target)
    assert await counted(target, "service", BYTES) > 0
    before = await hits(target)
    assert [await reply(target, start) for start in PROMPTS] == cached
    assert await hits(target) - before == len(PROMPTS) * CHUNKS * CHUNK_TOKENS
    assert await target.make_cold() == "cold"
    before = await hits(target)
    assert [await reply(target, start) for start in PROMPTS] == computed
    assert await hits(target) == before, "cold means that the nodes are empty too"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_over_a_scarce_link_all_comes_whole_whoever_is_next(
    east: Engine,
    west: Engine,
    behind_link: BehindLink,
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To a heavy client of two contexts, and to a light one of one. The cache of an engine has no
    room for two, so that none is computed in a batch with another."""
    monkeypatch.setattr(Switched, "name", scheduler)
    await asyncio.gather(empty_memory(east.target), empty_memory(west.target))
    before, choices = behind_link.down_bytes(), Switched.choices
    asked = (east.target, 0), (east.target, 1), (west.target, 1)
    first, second = behind_link.cached[:2]
    assert await from_nodes(*asked) == [first, second, second]
    grown = [new - old for new, old in zip(behind_link.down_bytes(), before, strict=True)]
    assert grown[0] > 2 * LEAST_CONTEXT_BYTES
    assert grown[1] > LEAST_CONTEXT_BYTES
    assert Switched.choices > choices, "it had to choose"


async def test_the_adaptive_codec_fits_two_engines_into_their_link_and_deadline(
    east: Engine, west: Engine, behind_link: BehindLink
) -> None:
    both, start = (east, west), 7
    asked = [(each.target, start) for each in both]
    await asyncio.gather(*(each.change(codec="adaptive") for each in both))
    before = await behind_link.keys()
    await reply(east.target, start)
    cached = await reply(east.target, start)
    await behind_link.holds(before + CHUNKS * len(LEVELS))
    for _ in range(2):  # the first time tells how fast the link is
        await asyncio.gather(*(empty_memory(each.target) for each in both))
        levels = [await loaded(each) for each in both]
        found = await from_nodes(*asked)
    assert found == [cached, cached]
    for each, before_it in zip(both, levels, strict=True):
        assert await loaded(each) - before_it == {"lossless": CHUNKS}
    for deadline_s in SHORT_DEADLINES_S:
        await asyncio.gather(*(each.change(load_deadline_s=deadline_s) for each in both))
        await asyncio.gather(*(empty_memory(each.target) for each in both))
        levels = [await loaded(each) for each in both]
        found = await asyncio.gather(*(reply(*each) for each in asked))
        assert [len(each["tokens"]) for each in found] == [8, 8]
        pairs = zip(both, levels, strict=True)
        new = [await loaded(each) - before_it for each, before_it in pairs]
        assert all(each.total() <= CHUNKS for each in new)
        coarse = [each["int4"] + each["int8"] for each in new]
        if min(coarse) > 1:
            break
    await asyncio.gather(*(each.change(load_deadline_s=NO_DEADLINE_S) for each in both))
    assert min(coarse) > 1, coarse
    for each in both:
        each.target.check()


async def loaded(engine: Engine) -> Counter[str]:
    """Chunks by level."""
    return Counter((await engine.status())["adaptive_chunks"])


async def test_both_engines_read_what_one_wrote_in_cachegen(
    east: Engine, west: Engine, behind_link: BehindLink, model: Path
) -> None:
    """From the profile of a forward pass, and the engine's KV as its CPU packs it."""
    both = (east, west)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = "\n".join(text for _, text in library_texts())[:20_000]
    prompt = tokenizer.encode(text).ids[-PROMPT_TOKENS:]
    await asyncio.gather(*(each.change(codec="cachegen") for each in both))
    before, before_bytes = await behind_link.keys(), await value_bytes(behind_link.port)
    await first_logprobs(east.target, prompt)
    exact = await first_logprobs(east.target, prompt)
    await behind_link.holds(before + CHUNKS)
    new_bytes = await value_bytes(behind_link.port) - before_bytes
    assert new_bytes < CHUNKS * CHUNK_TOKENS * EXACT_TOKEN_BYTES / 2
    await asyncio.gather(*(empty_memory(each.target) for each in both))
    counted_before = [await hits(each.target) for each in both]
    found = [await first_logprobs(each.target, prompt) for each in both]
    for each, hit_before in zip(both, counted_before, strict=True):
        assert await hits(each.target) - hit_before == CHUNKS * CHUNK_TOKENS
    assert found[0] == found[1]
    off = [abs(found[0][token] - exact[token]) for token in exact.keys() & found[0].keys()]
    assert len(off) > len(exact) / 2
    assert 0 < mean(off) < MOST_OFF_NATS


async def test_one_dead_node_costs_neither_engine_anything_and_two_only_hits(
    east: Engine, west: Engine, behind_link: BehindLink
) -> None:
    """All has moved back before."""
    both = (east, west)
    await asyncio.gather(
        *(each.change(nodes=behind_link.before, codec="lossless") for each in both)
    )
    await asyncio.gather(*(empty_memory(each.target) for each in both))
    cached = behind_link.cached[0]
    assert await from_nodes(*((each.target, 0) for each in both)) == [cached, cached]
    computed, all_cached = await replies(east.target)
    nodes = psutil.Process(east.target.facts()["pids"]["valkey3"][0]).children()
    assert len(nodes) == 3
    nodes[0].kill()
    nodes[0].wait(10)
    await asyncio.gather(*(empty_memory(each.target) for each in both))
    for start in PROMPTS:
        found = await from_nodes((east.target, start), (west.target, start))
        assert found == [all_cached[start]] * 2
    nodes[1].kill()
    nodes[1].wait(10)
    for target in (each.target for each in both):
        await empty_memory(target)
        for start in PROMPTS:
            before = await hits(target)
            found = [await reply(target, start)]
            tokens = await hits(target) - before
            assert tokens in (0, CHUNKS * CHUNK_TOKENS), "a context lies on a node whole"
            assert found == [(all_cached if tokens else computed)[start]]
    for each in both:
        each.target.check()
    assert await east.target.make_cold() == "cold"
