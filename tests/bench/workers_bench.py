"""One process, one worker and two workers on the same cores: speed, cost, and whether sums agree.

    python tests/bench/workers_bench.py [--repeats 5] [--seconds 6] [--out DIR]

Replies come at once, from the mock server on the last core. The swarm may use every core, so two
workers, their master and the server share two cores where there are no more: requests per second
cannot double there. What shows that they would is the cost: CPU for a thousand requests, the
master's part in it, and the server's beside it. Cases take turns. Exit code 1: a must is missed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
from children import CORES, mock_server
from client_bench import in_turn
from clients import Client, Command, Job, kvswarm_client
from run_folder import new_folder
from table import Results, machine_line, write_csv
from workers_figures import workers_figures
from workers_musts import SCENARIO, all_met, report

TOKENS, USERS = 16, 64


def case(name: str, *options: str) -> Client:
    """kvswarm as users run it, on all cores."""
    usual = kvswarm_client(name, ("--drain", "10", *options))

    def command(job: Job) -> Command:
        return replace(usual.command(job), cores=tuple(CORES))

    return Client(name, command, usual.reported)


CASES = (
    case("one process"),
    case("one worker", "--processes", "1"),
    case("two workers", "--processes", "2"),
)


PROCESSES = {"one process": 1, "one worker": 1, "two workers": 2}
"""That send, of each case."""


def measure_one(client: Client, seconds: int) -> dict[str, float]:
    """One run."""
    with mock_server(TOKENS, 0.0) as server, tempfile.TemporaryDirectory() as folder:
        job = Job(server.url, USERS, TOKENS, seconds, Path(folder))
        before_s = cpu_s(server.pid)
        metered = client.run(job)
        spent_s = cpu_s(server.pid) - before_s
        directory, processes = Path(folder) / "run", PROCESSES[client.name]
        return workers_figures(metered, server.log(), spent_s, directory, processes)


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(one: Callable[[Client], dict[str, float]], repeats: int) -> Results:
    """Every case as often as there are repeats, in turn."""
    results = Results()
    for client in in_turn(list(CASES), repeats):
        sys.stderr.write(f"{client.name}\n")
        results.add(SCENARIO, client.name, one(client))
    return results


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6, help="of load in each repeat")
    parser.add_argument("--out", type=Path, help="folder for the tables")
    return parser.parse_args()


def main() -> int:
    """Measure and report; the exit code."""
    options = parse_options()
    machine = machine_line()
    out = new_folder(options.out, "bench-workers", machine)
    results = measure(lambda client: measure_one(client, options.seconds), options.repeats)
    text = f"{machine}\n\n{report(results)}"
    (out / "bench.md").write_text(text, encoding="utf-8")
    write_csv(results, out / "bench.csv")
    sys.stdout.write(f"written to {out}\n\n{text}")
    return 0 if all_met(results) else 1


if __name__ == "__main__":
    sys.exit(main())
