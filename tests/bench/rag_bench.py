"""How long a label takes: by the number of chunks, over HTTP, and beside a busy vLLM.

    python tests/bench/rag_bench.py [--quick] [--only labels|load|sizes|embedders] [--out DIR]
    python tests/bench/rag_bench.py --report DIR

Rows go to CSV files in DIR. The report is made of them alone, and that of a run with all parts
goes into docs/measurements/retrieval.md. Libraries are kept in --libraries: embedding takes
minutes. Exit code 1 when a must is missed, 130 when interrupted. Other work on the machine makes
times worse, so run it alone.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import aiohttp
from rag_corpus import queries
from rag_evals import embedder_rows, size_rows
from rag_labels import Case, in_process, label_rows, neighbour_row, over_http
from rag_libraries import make_libraries
from rag_load import swarm, swarm_row
from rag_report import BEGIN, END, Rows, machine_text, musts, report
from rag_rows import LabelRow
from rag_service import read_lag, service
from run_folder import new_folder
from scheduler_engine_run import say
from scheduler_markdown import insert
from scheduler_rows import read_rows, write_rows

from loadgen.launch.terminal import interruptible
from rag_store.library import open_library
from rag_store.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "retrieval.md"
PARTS = ("labels", "load", "sizes", "embedders")
SMALL, MIDDLE, LARGE = 1_000, 10_000, 30_000
CASES = (
    Case(SMALL, "exact", "in process"),
    Case(SMALL, "exact", "HTTP"),
    Case(MIDDLE, "exact", "in process"),
    Case(MIDDLE, "exact", "HTTP"),
    Case(MIDDLE, "HNSW", "in process"),
    Case(LARGE, "HNSW", "in process"),
    Case(LARGE, "HNSW", "HTTP"),
    Case(LARGE, "exact", "in process"),
)
QUICK_CASES = CASES[:4]
LOADED = Case(MIDDLE, "exact", "HTTP", "vLLM")
OTHERS, QUICK_OTHERS = 4_000, 400
CLIENTS, LOADED_CLIENTS = (1, 4, 16), (1, 4)
LABELS, QUICK_LABELS, COMPARED = 500, 100, 200
EXACT_CHUNKS = {"exact": 1_000_000, "HNSW": 0}
LIMIT_S = 3600
MISSED, INTERRUPTED = 1, 130


async def measure(out: Path, options: argparse.Namespace) -> bool:
    """All parts or one; False when interrupted. Raises TimeoutError when it takes too long."""
    labels = QUICK_LABELS if options.quick else LABELS
    cases = QUICK_CASES if options.quick else CASES
    with interruptible() as interruption:
        async with asyncio.timeout(LIMIT_S):
            if options.only in (None, "labels"):
                await measure_labels(out, options.libraries, cases, labels)
            if options.only in (None, "load"):
                await measure_load(out, options.libraries, labels)
            if options.only in (None, "sizes"):
                write_rows(await size_rows(QUICK_OTHERS if options.quick else OTHERS, out), out)
            if options.only in (None, "embedders"):
                write_rows(await embedder_rows(options.causal_models, out), out)
    return not interruption.signal_number


async def measure_labels(out: Path, folder: Path, cases: tuple[Case, ...], labels: int) -> None:
    """A row for each case, number of clients and kind of embedding."""
    paths = await make_libraries(folder, sorted({case.chunks for case in cases}))
    for case in cases:
        say(f"{case.chunks} chunks, {case.search}, {case.way}")
        keep(await measure_case(case, paths[case.chunks], labels, CLIENTS), out)
    neighbours = []
    for chunks, path in paths.items():
        say(f"{chunks} chunks: the HNSW index against exact search")
        async with open_library(Settings(path=path)) as library:
            neighbours.append(await neighbour_row(library, queries()[:COMPARED]))
    write_rows(neighbours, out)


async def measure_load(out: Path, folder: Path, labels: int) -> None:
    """The service beside a busy vLLM."""
    paths = await make_libraries(folder, [LOADED.chunks])
    say("starting vLLM and a swarm")
    async with swarm(out / "swarm"):
        say("asking the service beside it")
        keep(await measure_case(LOADED, paths[LOADED.chunks], labels, LOADED_CLIENTS), out)
    write_rows([swarm_row(out / "swarm")], out)


async def measure_case(
    case: Case, path: Path, labels: int, clients: tuple[int, ...]
) -> list[LabelRow]:
    """Open the library, or a service on it, and ask."""
    texts, exact_chunks = endless(queries()), EXACT_CHUNKS[case.search]
    async with AsyncExitStack() as stack:
        if case.way == "in process":
            settings = replace(Settings(path=path), exact_chunks=exact_chunks)
            library = await stack.enter_async_context(open_library(settings))
            return await label_rows(case, in_process(library), texts, labels, clients)
        options = ("--exact-chunks", str(exact_chunks))
        url = await stack.enter_async_context(service(path, *options))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        ask = over_http(session, url)
        return await label_rows(case, ask, texts, labels, clients, lambda: read_lag(session, url))


def endless(texts: list[str]) -> Iterator[str]:
    """The texts, then each with a number behind it, so that none comes twice."""
    return (f"{text} {at // len(texts)}" if at >= len(texts) else text
            for at, text in enumerate(cycle(texts)))  # fmt: skip


def keep(rows: list[LabelRow], out: Path) -> None:
    """Add the rows to what is there, in place of those of the same case."""
    ours = {(row.chunks, row.search, row.way, row.load) for row in rows}
    there = read_rows(LabelRow, out)
    others = [r for r in there if (r.chunks, r.search, r.way, r.load) not in ours]
    write_rows([*others, *rows], out)


def publish(directory: Path, must_be_complete: bool) -> int:
    """Print the report and keep it, that of a complete run in the documentation; the exit code."""
    rows, text = Rows.of(directory), report(directory)
    (directory / "report.md").write_text(f"{text}\n", encoding="utf-8")
    found = musts(rows)
    measured = sum(must.measured is not None for must in found)
    met = sum(must.met for must in found)
    if measured == len(found) and rows.swarm and rows.sizes and rows.embedders:
        page = insert(PAGE.read_text(encoding="utf-8"), text, BEGIN, END)
        PAGE.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{text}\n\nwritten to {directory}\n")
    sys.stdout.write(f"musts met: {met} of {measured}\n")
    return MISSED if met < (len(found) if must_be_complete else measured) else 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 10,000 chunks, few labels")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument(
        "--causal-model",
        dest="causal_models",
        nargs="*",
        default=["", "trained"],
        metavar="MODEL",
        help="folders, or names such as Qwen/Qwen2.5-0.5B (default: the demo model, and `trained`)",
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="report on an earlier run")
    parser.add_argument("--out", type=Path, help="folder for CSV files, logs and report.md")
    parser.add_argument(
        "--libraries",
        type=Path,
        default=Path("runs/bench-rag-libraries"),
        help="folder for the libraries, 5 GB; what is there is used again",
    )
    return parser.parse_args()


def main() -> int:
    """Measure and report, or report only; the exit code."""
    options = parse_options()
    if options.report:
        return publish(options.report, must_be_complete=False)
    out = new_folder(options.out, "bench-rag", machine_text())
    if not asyncio.run(measure(out, options)):
        say(f"interrupted; the rows so far are in {out}")
        return INTERRUPTED
    return publish(out, must_be_complete=options.only in (None, "labels"))


if __name__ == "__main__":
    sys.exit(main())
