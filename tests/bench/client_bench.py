"""kvswarm's load engine against the smallest aiohttp + uvloop + orjson loop, in ratios.

    python tests/bench/client_bench.py [--seconds 5] [--repeats 5] [--concurrency 32] [--out DIR]

Both send the same bodies to the same mock server, which has a core of its own; the client has
another. The two take turns, and the table holds medians over the repeats. kvswarm runs as users
run it: inside Locust, with every metric on. Throughput and cost are measured without delays; what
a client adds to TTFT and ITL with replies of 32 tokens 20 ms apart, `--streams` at once.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from children import SERVER_CORE, mock_server, pin
from clients import BARE, KVSWARM, Client, Job
from figures import error_figures, load_figures
from table import Results, markdown, write_csv

TOKENS, PACED_TOKENS, PACED_GAP_MS = 16, 32, 20.0


def measure_load(client: Client, users: int, seconds: float) -> dict[str, float]:
    """One run without delays."""
    with mock_server(TOKENS, 0.0) as server, tempfile.TemporaryDirectory() as folder:
        metered = client.run(Job(server.url, users, TOKENS, seconds, Path(folder)))
        return load_figures(metered, server.log())


def measure_error(client: Client, streams: int, seconds: float) -> dict[str, float]:
    """One run of paced replies."""
    with (
        mock_server(PACED_TOKENS, PACED_GAP_MS) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        metered = client.run(Job(server.url, streams, PACED_TOKENS, seconds, Path(folder)))
        return error_figures(metered, server.log(), client.reported(Path(folder)))


def in_turn(what: str, repeats: int) -> Iterator[Client]:
    """Both clients as often as there are repeats, each of them first every other time."""
    for repeat in range(repeats):
        for client in (KVSWARM, BARE) if repeat % 2 == 0 else (BARE, KVSWARM):
            sys.stderr.write(f"{what}, {repeat + 1} of {repeats}: {client.name}\n")
            yield client


def measure(options: argparse.Namespace) -> Results:
    """Everything, in about repeats x 15 s."""
    results = Results()
    for client in in_turn("throughput", options.repeats):
        figures = measure_load(client, options.concurrency, options.seconds)
        results.add(f"{options.concurrency} users, no delay", client.name, figures)
    for streams in options.streams:
        for client in in_turn(f"{streams} streams", options.error_repeats):
            figures = measure_error(client, streams, options.error_seconds)
            results.add(f"{streams} paced streams", client.name, figures)
    return results


def parse_options() -> argparse.Namespace:
    """The command line; `--seconds` of whole numbers, as Locust's `-t` takes no others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=5, help="of load in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--streams", type=int, nargs="+", default=[64], help="paced, at once")
    parser.add_argument("--error-seconds", type=int, default=4, help="of paced replies")
    parser.add_argument("--error-repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for bench.md and bench.csv")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    out = options.out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-bench"
    out.mkdir(parents=True, exist_ok=True)
    pin(SERVER_CORE)
    results = measure(options)
    text = markdown(results)
    (out / "bench.md").write_text(text)
    write_csv(results, out / "bench.csv")
    sys.stdout.write(f"{text}\nwritten to {out}\n")


if __name__ == "__main__":
    main()
