"""kvswarm's load engine against bare loops and other load generators, and what it must reach.

    python tests/bench/client_bench.py [--quick] [--only NAME…] [--repeats 5] [--out DIR]

All send to the same mock server, which has a core of its own; the client has another. Clients take
turns, and the table holds medians over the repeats. kvswarm runs as users run it: inside Locust,
with every metric on. `bare` is the smallest aiohttp + uvloop + orjson loop, `floor` a protocol
that knows the replies by heart: both are references, the others peers. Throughput and cost are
measured without delays; what a client adds to TTFT and ITL with replies of 32 tokens 20 ms apart.
Takes about 15 minutes, with --quick 5; aiperf and guidellm, where they are installed, about 5 more
each. Every run has a time limit. Exit code 1: a must is missed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from children import SERVER_CORE, mock_server, pin
from client_musts import (
    CHAT,
    HTTPS,
    HTTPS_STREAMS,
    LOAD,
    OPEN_LOOP,
    OPEN_LOOP_RATE,
    all_met,
    judgement,
    paced,
)
from client_peers import peers, versions_of_others
from clients import BARE, FASTHTTP, FLOOR, KVSWARM, SATURATED, Client, Job, kvswarm_client
from figures import error_figures, load_figures, pace_figures
from table import Results, markdown, write_csv

from loadgen.client.settings import Endpoint

TOKENS, PACED_TOKENS, PACED_GAP_MS = 16, 32, 20.0
CONCURRENCY, STREAMS = 32, (64, 256, 1000)
OPEN_LOOP_USERS = 2000
"""More than are ever in flight."""
EXIT_CODE = "exit_code"
REQUESTS_PER_S = 2500
"""What clients are given to do who want a number of requests and not a time."""


def measure_load(
    client: Client, options: argparse.Namespace, endpoint: Endpoint = "completions"
) -> dict[str, float]:
    """One run without delays."""
    with mock_server(TOKENS, 0.0) as server, tempfile.TemporaryDirectory() as folder:
        requests = REQUESTS_PER_S * options.seconds
        job = Job(
            server.url, CONCURRENCY, TOKENS, options.seconds, Path(folder), requests, endpoint
        )
        metered = client.run(job)
        return {**load_figures(metered, server.log()), EXIT_CODE: float(metered.exit_code)}


def measure_error(
    client: Client, streams: int, options: argparse.Namespace, tls: bool = False
) -> dict[str, float]:
    """One run of paced replies."""
    with (
        mock_server(PACED_TOKENS, PACED_GAP_MS, tls=tls) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        seconds = options.error_seconds
        requests = int(streams * seconds / (PACED_TOKENS * PACED_GAP_MS / 1000))
        job = Job(server.url, streams, PACED_TOKENS, seconds, Path(folder), requests)
        metered = client.run(job)
        figures = error_figures(metered, server.log(), client.reported(Path(folder)))
        return {**figures, EXIT_CODE: float(metered.exit_code)}


def measure_pace(client: Client, options: argparse.Namespace) -> dict[str, float]:
    """One run of an open loop, whose replies come at once."""
    with mock_server(1, 0.0) as server, tempfile.TemporaryDirectory() as folder:
        job = Job(server.url, OPEN_LOOP_USERS, 1, options.seconds, Path(folder))
        exit_code = client.run(job).exit_code
        figures = pace_figures(job.folder / "run" / "requests.csv", OPEN_LOOP_RATE)
        return {**figures, EXIT_CODE: float(exit_code)}


def in_turn(clients: list[Client], repeats: int) -> Iterator[Client]:
    """Each client as often as there are repeats, a slow one once; every other time backwards."""
    for repeat in range(repeats):
        for client in clients if repeat % 2 == 0 else reversed(clients):
            if repeat == 0 or not client.slow:
                yield client


def measure(clients: list[Client], options: argparse.Namespace) -> Results:
    """Every scenario; a peer that fails is left out, with its reason."""
    results = Results()

    def run(
        scenario: str,
        repeats: int,
        one: Callable[[Client], dict[str, float]],
        who: list[Client] = clients,
    ) -> None:
        for client in in_turn(who, repeats):
            sys.stderr.write(f"{scenario}: {client.name}\n")
            try:
                figures = one(client)
                results.saturated |= figures.pop(EXIT_CODE) == SATURATED
                results.add(scenario, client.name, figures)
            except (RuntimeError, TimeoutError, OSError, ValueError, KeyError) as error:
                if client.name == KVSWARM.name:
                    raise
                sys.stderr.write(f"{client.name} is left out of {scenario}: {error}\n")

    run(LOAD, options.repeats, lambda client: measure_load(client, options))
    our_loops = [client for client in clients if client in (KVSWARM, BARE)]
    run(CHAT, options.repeats, lambda client: measure_load(client, options, "chat"), our_loops)
    if KVSWARM in clients:
        rate = ("--arrivals", "poisson", "--rate", f"{OPEN_LOOP_RATE:g}")
        open_loop = [kvswarm_client(KVSWARM.name, rate)]
        run(OPEN_LOOP, options.error_repeats, lambda c: measure_pace(c, options), open_loop)
    for streams in options.streams:
        run(
            paced(streams),
            options.error_repeats,
            lambda client, streams=streams: measure_error(client, streams, options),
        )
    run(
        HTTPS,
        options.error_repeats,
        lambda client: measure_error(client, HTTPS_STREAMS, options, tls=True),
        our_loops,
    )
    return results


def chosen_clients(only: list[str]) -> list[Client]:
    """Those asked for, all by default. Ends the program for a name that is not there."""
    clients = [KVSWARM, BARE, FLOOR, FASTHTTP, *peers()]
    known = {client.name: client for client in clients}
    for name in only:
        if name not in known:
            sys.exit(f"no client {name!r}: give some of {', '.join(known)}")
    return [known[name] for name in only] or clients


def parse_options() -> argparse.Namespace:
    """The command line; `--seconds` of whole numbers, as Locust's `-t` takes no others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=5, help="of load in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS, help="paced, at once")
    parser.add_argument("--error-seconds", type=int, default=5, help="of paced replies")
    parser.add_argument("--error-repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="CLIENT", help="some clients")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: a first look")
    parser.add_argument("--out", type=Path, help="folder for bench.md and bench.csv")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.error_repeats = 2, 1
        options.seconds = options.error_seconds = 4
    return options


def main() -> int:
    options = parse_options()
    clients = chosen_clients(options.only)
    out = options.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-bench"
    out.mkdir(parents=True, exist_ok=True)
    pin(SERVER_CORE)
    results = measure(clients, options)
    text = f"{markdown(results, versions_of_others())}\n" + "\n".join(judgement(results)) + "\n"
    (out / "bench.md").write_text(text, encoding="utf-8")
    write_csv(results, out / "bench.csv")
    sys.stdout.write(f"written to {out}\n\n{text}")
    return 0 if all_met(results) else 1


if __name__ == "__main__":
    sys.exit(main())
