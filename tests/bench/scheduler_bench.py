"""The context scheduler against vLLM's own order: on its scheduler object and on real engines.

    python tests/bench/scheduler_bench.py [--quick] [--only virtual|one-engine|servers] [--out DIR]
    python tests/bench/scheduler_bench.py --report DIR

Rows go to CSV files in DIR. The report is made of them alone, and that of a complete run goes into
docs/measurements/scheduler.md. Exit code 1 when a must is missed, 130 when interrupted. One engine
is loaded at a time and the arms take turns; still, other work on the machine makes times worse, so
run it alone.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop
from run_folder import new_folder
from scheduler_cases import SIDE_REPEATS, server_cases
from scheduler_engine_run import EngineRun, say
from scheduler_markdown import insert
from scheduler_musts import Rows, musts
from scheduler_report import machine_text, report
from scheduler_rows import AdmissionRow

from loadgen.launch.terminal import interruptible

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "measurements" / "scheduler.md"
VIRTUAL_LIMIT_S, ONE_ENGINE_LIMIT_S = 900, 3600
SERVERS_LIMIT_S, QUICK_SERVERS_LIMIT_S = 2400, 900
PARTS = ("virtual", "one-engine", "servers")
ONE_ENGINE_DONE = "one_engine.done"
MISSED, INTERRUPTED = 1, 130


async def measure(out: Path, quick: bool, only: str | None, side_repeats: int) -> bool:
    """All parts or one; False when interrupted. Raises TimeoutError when one takes too long."""
    with interruptible() as interruption:
        if only in (None, "virtual") and not (out / AdmissionRow.FILE).is_file():
            say("the scheduler object on a virtual clock")
            async with asyncio.timeout(VIRTUAL_LIMIT_S):
                await run_child("scheduler_virtual.py", out, quick)
        if only in (None, "one-engine") and not (out / ONE_ENGINE_DONE).is_file():
            say("one real engine for all")
            async with asyncio.timeout(ONE_ENGINE_LIMIT_S):
                await run_child("scheduler_one_engine.py", out, quick)
            (out / ONE_ENGINE_DONE).touch()
        if only in (None, "servers"):
            async with asyncio.timeout(QUICK_SERVERS_LIMIT_S if quick else SERVERS_LIMIT_S):
                cases = server_cases(quick, side_repeats)
                await EngineRun(out, cases, with_reports=not quick and side_repeats > 0).serve()
    return not interruption.signal_number


async def run_child(script: str, out: Path, quick: bool) -> None:
    """A part that imports vLLM, in a process of its own. Raises RuntimeError when it fails."""
    command = [str(HERE / script), "--out", str(out), *["--quick"] * quick]
    log = out / f"{script}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=output, stderr=output
        )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if code:
        raise RuntimeError(f"{script} ended with {code}, see {log}")


def publish(directory: Path, must_be_complete: bool) -> int:
    """Print the report and keep it, that of a complete run in the documentation; the exit code."""
    text = report(directory)
    (directory / "report.md").write_text(f"{text}\n", encoding="utf-8")
    found = musts(Rows.of(directory))
    measured = sum(must.measured is not None for must in found)
    met = sum(must.met for must in found)
    if measured == len(found):
        PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    sys.stdout.write(f"{text}\n\nwritten to {directory}\n")
    if measured < len(found):
        sys.stdout.write(f"not measured: {len(found) - measured} musts\n")
    sys.stdout.write(f"musts met: {met} of {measured}\n")
    return MISSED if met < (len(found) if must_be_complete else measured) else 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two cache sizes, few repeats")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument(
        "--side-repeats",
        type=int,
        default=SIDE_REPEATS,
        help="of the batches through servers, which no must is about; 0 = none",
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="report on an earlier run")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for CSV files, logs and report.md; what a run has left there counts",
    )
    return parser.parse_args()


def main() -> int:
    """Measure and report, or report only; the exit code."""
    options = parse_options()
    if options.report:
        return publish(options.report, must_be_complete=False)
    out = new_folder(options.out, "bench-scheduler", machine_text())
    if not uvloop.run(measure(out, options.quick, options.only, options.side_repeats)):
        say(f"interrupted; the rows so far are in {out}")
        return INTERRUPTED
    return publish(out, must_be_complete=not options.quick and options.only is None)


if __name__ == "__main__":
    sys.exit(main())
