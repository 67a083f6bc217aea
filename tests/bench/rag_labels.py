"""Labels asked of a library, in this process or over HTTP, and where their time went."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from cpu_watch import CpuWatch
from figures import percentile
from rag_rows import LabelRow, NeighbourRow
from rag_service import Lag

from rag_store.library import Library

WARM_LABELS = 20
Ask = Callable[[str], Awaitable[Mapping[str, float]]]
"""Labels a text and gives the label's timings by their names in JSON."""
ReadLag = Callable[[], Awaitable[Lag]]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked, of which library; see LabelRow."""

    chunks: int
    search: str
    way: str
    load: str = "idle"


@dataclass(frozen=True, slots=True)
class Sample:
    """One label's times in ms."""

    rest: float
    search: float
    fuse: float
    embed: float
    answer: float


def in_process(library: Library) -> Ask:
    """Labels by the library itself."""

    async def ask(text: str) -> Mapping[str, float]:
        timings = (await library.label(text)).timings
        return {
            "queue_ms": timings.queue_ms,
            "embed_ms": timings.embed_ms,
            "search_ms": timings.search_ms,
            "fuse_ms": timings.fuse_ms,
        }

    return ask


def over_http(session: aiohttp.ClientSession, url: str) -> Ask:
    """Labels by the service. Raises aiohttp.ClientError."""

    async def ask(text: str) -> Mapping[str, float]:
        async with session.post(f"{url}/v1/label", json={"query": text}) as answer:
            answer.raise_for_status()
            return dict((await answer.json())["timings"])

    return ask


async def label_rows(
    case: Case,
    ask: Ask,
    texts: Iterator[str],
    labels: int,
    clients: Sequence[int],
    read_lag: ReadLag | None = None,
) -> list[LabelRow]:
    """For each number of clients a row with texts that are new, and one with the same again."""
    rows = []
    # The first label after a library is opened pays for the index.
    await _ask_all(ask, [next(texts) for _ in range(WARM_LABELS)], 1)
    for number in clients:
        new = [next(texts) for _ in range(labels)]
        for embedding in ("computed", "kept"):
            before, watch = await read_lag() if read_lag else None, CpuWatch()
            begun_s = time.perf_counter()
            samples = await _ask_all(ask, new, number)
            took_s, others = time.perf_counter() - begun_s, watch.others()
            lag = (await read_lag()).since(before) if read_lag and before else None
            rows.append(_row(case, number, embedding, samples, took_s, lag, others))
    return rows


async def _ask_all(ask: Ask, texts: Sequence[str], clients: int) -> list[Sample]:
    left, samples = iter(texts), []

    async def client() -> None:
        for text in left:
            begun_s = time.perf_counter()
            timings = await ask(text)
            samples.append(_sample(timings, (time.perf_counter() - begun_s) * 1000))

    await asyncio.gather(*(client() for _ in range(clients)))
    return samples


async def neighbour_row(library: Library, texts: Iterable[str]) -> NeighbourRow:
    """The HNSW index against exact search, text by text. Raises RagError."""
    found = [await library.neighbours(text) for text in texts]
    exact, hnsw = (
        sorted(getattr(each, name) for each in found) for name in ("exact_ms", "hnsw_ms")
    )
    return NeighbourRow(
        chunks=library.size.chunks,
        queries=len(found),
        recall=statistics.fmean(each.recall for each in found),
        exact_p50_ms=percentile(exact, 0.5),
        exact_p99_ms=percentile(exact, 0.99),
        hnsw_p50_ms=percentile(hnsw, 0.5),
        hnsw_p99_ms=percentile(hnsw, 0.99),
    )


def _sample(timings: Mapping[str, float], answer_ms: float) -> Sample:
    search, fuse = timings["search_ms"], timings["fuse_ms"]
    return Sample(timings["queue_ms"] + search + fuse, search, fuse, timings["embed_ms"], answer_ms)


def _row(
    case: Case,
    clients: int,
    embedding: str,
    samples: Sequence[Sample],
    took_s: float,
    lag: Lag | None,
    others_cpu: float,
) -> LabelRow:
    rest, answer = (sorted(getattr(s, name) for s in samples) for name in ("rest", "answer"))
    return LabelRow(
        chunks=case.chunks,
        search=case.search,
        way=case.way,
        load=case.load,
        clients=clients,
        embedding=embedding,
        labels=len(samples),
        rest_p50_ms=percentile(rest, 0.5),
        rest_p95_ms=percentile(rest, 0.95),
        rest_p99_ms=percentile(rest, 0.99),
        search_p99_ms=percentile(sorted(sample.search for sample in samples), 0.99),
        fuse_p99_ms=percentile(sorted(sample.fuse for sample in samples), 0.99),
        embed_p50_ms=percentile(sorted(sample.embed for sample in samples), 0.5),
        answer_p50_ms=percentile(answer, 0.5),
        answer_p95_ms=percentile(answer, 0.95),
        answer_p99_ms=percentile(answer, 0.99),
        labels_per_s=len(samples) / took_s,
        lag_p50_ms=lag.percentile_ms(0.5) if lag else -1.0,
        lag_p95_ms=lag.percentile_ms(0.95) if lag else -1.0,
        lag_p99_ms=lag.percentile_ms(0.99) if lag else -1.0,
        others_cpu=others_cpu,
    )
