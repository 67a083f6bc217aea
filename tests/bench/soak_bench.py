"""A long run at many streams: nothing lost, memory and lag as they were at its beginning.

    python tests/bench/soak_bench.py [--minutes 20] [--streams 1000] [--out DIR]

kvswarm runs as users run it, inside Locust with every metric on, against the mock server, which
counts what it receives and writes; each has a core of its own. Replies are 32 tokens 50 ms apart,
so a thousand streams are 600 requests and 20,000 tokens a second; 20 minutes leave 160 MB in the
folder. Exit code 1: a must is missed.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from children import SERVER_CORE, Metered, mock_server, pin
from clients import SATURATED, Client, Job, kvswarm_client
from run_folder import new_folder
from soak_figures import soak_figures
from soak_musts import all_met, report, write_figures
from table import machine_line

TOKENS, GAP_MS = 32, 50.0
END_S = 120.0
"""What the end of a run may take beside the drain: summary and files."""


def measure(options: argparse.Namespace, out: Path) -> dict[str, float]:
    """Run it; every figure there is."""
    usual = kvswarm_client("kvswarm", ("--drain", "30"))
    client = Client(
        usual.name, lambda job: replace(usual.command(job), grace_s=END_S), usual.reported
    )
    with mock_server(TOKENS, GAP_MS, counts=True) as server:
        seconds = options.minutes * 60
        metered = client.run(Job(server.url, options.streams, TOKENS, seconds, out))
        figures = soak_figures(out / "run", server.log())
    return {**figures, **process_figures(metered)}


def process_figures(metered: Metered) -> dict[str, float]:
    """Of the whole process, its end included."""
    return {
        "peak_rss_mb": metered.peak_rss_mb,
        "saturated": float(metered.exit_code == SATURATED),
    }


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20, help="of load")
    parser.add_argument("--streams", type=int, default=1000, help="at once")
    parser.add_argument("--out", type=Path, help="folder for the tables and the run directory")
    return parser.parse_args()


def main() -> int:
    """Measure and report; the exit code."""
    options = parse_options()
    machine = machine_line()
    out = new_folder(options.out, "bench-soak", machine)
    pin(SERVER_CORE)
    figures = measure(options, out)
    text = f"{machine}\n\n{options.streams} streams, {options.minutes:g} minutes\n\n"
    text += report(figures)
    (out / "bench.md").write_text(text, encoding="utf-8")
    write_figures(figures, out / "bench.csv")
    sys.stdout.write(f"written to {out}\n\n{text}")
    return 0 if all_met(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
