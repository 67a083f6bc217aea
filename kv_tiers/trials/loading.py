"""A prompt's KV loaded through a scarce link from a real node, with each codec, by the tier itself.

What comes is decoded while more is on its way, as behind an engine.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kv_tiers.codecs import Bits
from kv_tiers.link import SCHEDULERS, LinkProxy, LinkSettings, RateSchedule
from kv_tiers.link.proxy import HOST
from kv_tiers.store import ServerError, ShardedStore, StoreKey, valkey_server
from kv_tiers.store.coder import BFLOAT16, ChunkCoder, RawChunk
from kv_tiers.store.nodes import split_address
from kv_tiers.store.settings import TierSettings
from kv_tiers.store.tier import RemoteTier
from kv_tiers.trials.figures import NetworkFigure

QUESTION = "loading"
ALONE, COMPUTING = "codec alone", "computing"
DEADLINE_S = 600.0
CODECS_TRIED = (("raw", 0), ("lossless", 0), ("int8", 0), ("int4", 0), ("cachegen", 1))


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    """Links of these rates, and a load again while all loads have taken less than `seconds`, up
    to `most_repeats` times."""

    rates_mbit: tuple[float, ...] = (10, 50, 200, 1000)
    chunks: int = 15
    chunk_tokens: int = 64
    seconds: float = 6.0
    most_repeats: int = 3

    @property
    def tokens(self) -> int:
        """Of the prompt."""
        return self.chunks * self.chunk_tokens


def computing(plan: LoadingPlan, tokens_per_s: float) -> list[NetworkFigure]:
    """What loading is set against: the prompt's `tokens` in `chunks`, at `tokens_per_s`."""
    figures = {"tokens": plan.tokens, "chunks": plan.chunks, "tokens_per_s": tokens_per_s}
    return [
        NetworkFigure(QUESTION, COMPUTING, ALONE, measure, float(value))
        for measure, value in figures.items()
    ]


async def load_kv(
    plan: LoadingPlan, bits: Bits, profile: Path | None
) -> AsyncIterator[NetworkFigure]:
    """`bytes_per_token` and `decode_s` of each codec, of all chunks one after the other, and
    `loaded_s` by rate. `bits` are of the prompt, [layers, 2, tokens, channels]; without a profile
    CacheGen is left out. Raises ServerError."""
    chunks = chunks_of(plan, bits)
    keys = [b"chunk %d" % at for at in range(len(chunks))]
    for codec, level in CODECS_TRIED:
        if codec == "cachegen" and profile is None:
            continue
        coder, subject = ChunkCoder(codec, level, profile), f"{codec} {level or ''}".strip()
        frames = [coder.frame(chunk, key) for chunk, key in zip(chunks, keys, strict=True)]
        for measure, value in (
            ("bytes_per_token", sum(map(len, frames)) / plan.tokens),
            ("decode_s", _decode_s(coder, frames, keys, chunks)),
        ):
            yield NetworkFigure(QUESTION, subject, ALONE, measure, value)
        async with valkey_server() as (address, _):
            await _fill(address, keys, frames)
            settings = _settings(codec, level, profile)
            for rate in plan.rates_mbit:
                loads = _loads(plan, rate, address, settings, keys, chunks)
                repeat = 0
                async for loaded_s in loads:
                    setting = f"{rate:g} Mbit/s"
                    yield NetworkFigure(QUESTION, subject, setting, "loaded_s", loaded_s, repeat)
                    repeat += 1


def chunks_of(plan: LoadingPlan, bits: Bits) -> list[RawChunk]:
    planes = np.ascontiguousarray(bits.transpose(1, 0, 2, 3))
    size = plan.chunk_tokens
    parts = (planes[:, :, at * size : (at + 1) * size] for at in range(plan.chunks))
    return [RawChunk(part.tobytes(), BFLOAT16, part.shape) for part in parts]


def _decode_s(
    coder: ChunkCoder, frames: Sequence[bytes], keys: Sequence[bytes], like: Sequence[RawChunk]
) -> float:
    since_s = time.perf_counter()
    for frame, key, chunk in zip(frames, keys, like, strict=True):
        coder.content(frame, key, chunk)
    return time.perf_counter() - since_s


async def _fill(address: str, keys: Sequence[bytes], frames: Sequence[bytes]) -> None:
    store = ShardedStore([address], node_deadline_s=DEADLINE_S)
    for key, frame in zip(keys, frames, strict=True):
        await store.put(StoreKey.alone(key), frame)
    await store.aclose()


def _settings(codec: str, level: int, profile: Path | None) -> dict[str, object]:
    return {
        "codec": codec,
        "level": level,
        "profile": None if profile is None else str(profile),
        "node_deadline_s": DEADLINE_S,
        "load_deadline_s": DEADLINE_S,
    }


async def _loads(
    plan: LoadingPlan,
    rate_mbit: float,
    address: str,
    settings: dict[str, object],
    keys: Sequence[bytes],
    chunks: Sequence[RawChunk],
) -> AsyncIterator[float]:
    """Seconds of each load."""
    link = LinkSettings(RateSchedule.fixed(rate_mbit), SCHEDULERS["fifo"])
    async with LinkProxy(link, [0], *split_address(address)) as proxy:
        of_link = TierSettings.of({"nodes": [f"{HOST}:{proxy.ports[0]}"], **settings})
        async with RemoteTier(of_link) as tier:
            spent_s = 0.0
            for _ in range(plan.most_repeats):
                loaded_s = await _one_load(tier, keys, chunks)
                yield loaded_s
                spent_s += loaded_s
                if spent_s > plan.seconds:
                    return


async def _one_load(tier: RemoteTier, keys: Sequence[bytes], chunks: Sequence[RawChunk]) -> float:
    taken: set[int] = set()
    since_s = time.monotonic()
    await tier.load(keys, chunks, lambda at, _: taken.add(at))
    if len(taken) < len(keys):
        raise ServerError(f"only {len(taken)} of {len(keys)} chunks were loaded")
    return time.monotonic() - since_s
