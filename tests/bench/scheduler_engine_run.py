"""The real-engine half from its first start to its last row."""

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from scheduler_cases import Arm, Case
from scheduler_engine import BatchFigures, measure_batch
from scheduler_outputs import SETUP as OUTPUTS_SETUP
from scheduler_outputs import outputs_rows
from scheduler_poisson import SETUP as POISSON_SETUP
from scheduler_poisson import poisson_rows
from scheduler_rows import EngineRow, read_rows, write_rows
from scheduler_servers import EngineSetup, Server, running


class EngineRun:
    """Serves all cases, set-up by set-up; what was measured is on disk after each batch.

    Cases whose rows are all in `out` already are not served again.
    """

    def __init__(self, out: Path, cases: list[Case], with_reports: bool) -> None:
        """`with_reports` adds Poisson arrivals and the comparison of outputs."""
        self._out = out
        self._cases = cases
        self._with_reports = with_reports
        self._rows = complete_rows(read_rows(EngineRow, out), cases)
        done = {row.case for row in self._rows}
        self._left = [case for case in cases if case.title not in done]

    async def serve(self) -> None:
        """Raises TargetError and RuntimeError; no engine is left running, whatever happens."""
        for setup, cases in by_setup(self._left).items():
            policies = list(dict.fromkeys(arm.policy for case in cases for arm in case.arms))
            say(f"{setup.name}: starting {', '.join(policies)}")
            async with running(setup, policies, self._out / "logs") as servers:
                for case in cases:
                    await self._batches(case, servers)
                if self._with_reports:
                    await self._reports(setup, servers)

    async def _batches(self, case: Case, servers: dict[str, Server]) -> None:
        for repeat, arm in case.turns():
            figures = await measure_batch(servers[arm.policy], case.batch, arm.labelled, case.warm)
            row = engine_row(case, arm, repeat, figures)
            say(
                f"{row.case}, {repeat} of {case.repeats}: {row.arm} {row.total_s:.2f} s,"
                f" {row.computed_tokens} tokens computed, others {row.others_cpu:.0%}"
            )
            self._rows.append(row)
            write_rows(self._rows, self._out)

    async def _reports(self, setup: EngineSetup, servers: dict[str, Server]) -> None:
        if setup == OUTPUTS_SETUP:
            say("comparing greedy outputs")
            write_rows(await outputs_rows(servers), self._out)
        if setup == POISSON_SETUP:
            say("Poisson arrivals")
            write_rows(await poisson_rows(servers), self._out)


def complete_rows(rows: list[EngineRow], cases: list[Case]) -> list[EngineRow]:
    """The rows that stay: those of a case that is not whole go, as it is served anew."""
    wanted = {case.title: case.repeats * len(case.arms) for case in cases}
    counts = Counter(row.case for row in rows)
    return [row for row in rows if counts[row.case] == wanted.get(row.case, counts[row.case])]


def by_setup(cases: list[Case]) -> dict[EngineSetup, list[Case]]:
    """Cases that share their engines, in the order of their first."""
    together: dict[EngineSetup, list[Case]] = {}
    for case in cases:
        together.setdefault(case.setup, []).append(case)
    return together


def engine_row(case: Case, arm: Arm, repeat: int, figures: BatchFigures) -> EngineRow:
    """One batch as a row."""
    return EngineRow(
        case=case.title,
        setup=case.setup.name,
        arm=arm.name,
        repeat=repeat,
        requests=case.batch.requests,
        bound_tokens=case.batch.bound_tokens,
        **asdict(figures),
    )


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(f"{text}\n")
