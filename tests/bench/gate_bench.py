"""Whether the gate of `kvswarm compare` can be trusted: on many runs of a real vLLM.

    python tests/bench/gate_bench.py [--out DIR] [--runs N] [--slow N] [--reach N] [--noise N]
                                     [--seconds N] [--served N]
    python tests/bench/gate_bench.py --report DIR

Identical runs tell how often a gate gives a false alarm, runs on an engine made slower how often a
slow-down is found. A second call with the same DIR goes on where the first was interrupted. Exit
code 1 when a must is missed, 130 when interrupted. Other work on the machine is borne by the gate
but makes runs differ more.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import uvloop
from gate_report import LEAST_PAIRS, Evidence, judge_gates, report
from gate_runs import Plan, is_done, make_runs, say
from table import machine_line

from loadgen.launch.terminal import interruptible

MISSED, INTERRUPTED = 1, 130
PLAN_FILE = "plan.json"
NUMBERS = ("noise", "runs", "slow", "reach", "seconds", "served")


async def measure(plan: Plan) -> bool:
    """Make the runs; False when interrupted."""
    with interruptible() as interruption:
        await make_runs(plan, interruption)
    return not interruption.signal_number


def publish(plan: Plan) -> int:
    """Print the report and keep it; the exit code."""
    missing = [path for path in (*plan.identical_folders, *plan.slow_folders) if not is_done(path)]
    if missing:
        sys.exit(f"{len(missing)} runs are missing, the first is {missing[0]}: go on with --out")
    evidence = Evidence.of(plan)
    rows = judge_gates(evidence)
    text = f"{machine_line()}\n\n{report(evidence, rows)}\n"
    (plan.out / "report.md").write_text(text, encoding="utf-8")
    met = sum(row.is_met for row in rows)
    to_find = sum(row.must_find for row in rows)
    sys.stdout.write(f"{text}\ngates that met their musts: {met} of {len(rows)}\n")
    if not to_find:
        sys.stdout.write("the slow engine is less than 15 % slower in every metric: no must\n")
    if len(evidence.identical) < LEAST_PAIRS:
        sys.stdout.write(f"fewer than {LEAST_PAIRS} pairs show little\n")
    return 0 if met == len(rows) and to_find else MISSED


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=16, help="identical ones, to be paired")
    parser.add_argument("--slow", type=int, default=8, help="runs on the slow engine")
    parser.add_argument("--reach", type=int, default=4, help="next ones a run is paired with")
    parser.add_argument("--noise", type=int, default=8, help="runs for the spread between runs")
    parser.add_argument("--seconds", type=int, default=40, help="length of each run")
    parser.add_argument(
        "--served", type=int, default=1, help="how many of eight users the slow engine serves"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-gate"), help="kept here")
    parser.add_argument("--report", type=Path, metavar="DIR", help="report on an earlier one")
    return parser.parse_args()


def planned(options: argparse.Namespace) -> Plan:
    """As asked for; what was begun in the directory is gone on with as it was planned."""
    out = options.report or options.out
    file = out / PLAN_FILE
    if file.is_file():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if missing := [name for name in NUMBERS if name not in kept]:
            sys.exit(
                f"{file} is of another version, without {', '.join(missing)}: give a new --out"
            )
        return Plan(out, *(kept[name] for name in NUMBERS))
    if options.report:
        sys.exit(f"{out} holds no run of this benchmark: name one with {PLAN_FILE}")
    plan = Plan(out, *(getattr(options, name) for name in NUMBERS))
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(plan), default=str), encoding="utf-8")
    return plan


def main() -> int:
    """Measure and report, or report only; the exit code."""
    options = parse_options()
    plan = planned(options)
    if not options.report and not uvloop.run(measure(plan)):
        say(f"interrupted; the runs so far are in {plan.out}")
        return INTERRUPTED
    return publish(plan)


if __name__ == "__main__":
    sys.exit(main())
