"""What a swarm of several processes must reach, and its table."""

from dataclasses import dataclass

from children import CORES
from table import Results

SCENARIO = "no delay"
ALONE, ONE, TWO = "one process", "one worker", "two workers"
FIGURES = {
    "requests_per_s": "requests/s",
    "cpu_s_per_1000": "CPU s per 1000 requests, whole swarm",
    "first_cpu_s_per_1000": "of it the first process, the master where there are workers",
    "server_cpu_s_per_1000": "CPU s per 1000 requests, server",
    "least_share": "requests of the process with fewest, of a fair share",
    "percentile_error": "worst percentile of the summary against all rows, relative",
    "rows_apart": "replies of the server and rows, apart by",
}


@dataclass(frozen=True, slots=True)
class Must:
    """A limit on the median of a figure of a case, or on its ratio to that of one worker."""

    case: str
    figure: str
    limit: float
    ratio: bool = False
    at_least: bool = False

    def value(self, results: Results) -> float:
        """What was reached."""
        value = results.median(SCENARIO, self.figure, self.case) or 0.0
        one = results.median(SCENARIO, self.figure, ONE)
        return value / one if self.ratio and one else value

    def is_met(self, results: Results) -> bool:
        """Whether that is enough."""
        value = self.value(results)
        return value >= self.limit if self.at_least else value <= self.limit

    def line(self, results: Results) -> str:
        """What was asked, what was reached, and the verdict."""
        asked = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        asked += f" of {ONE}" if self.ratio else ""
        verdict = "met" if self.is_met(results) else "MISSED"
        reached = f"{self.value(results):.3g}"
        return f"| {self.case} | {FIGURES[self.figure]} | {asked} | {reached} | {verdict} |"


MUSTS = (
    Must(TWO, "cpu_s_per_1000", 1.2, ratio=True),
    Must(TWO, "least_share", 0.8, at_least=True),
    *(Must(case, "percentile_error", 0.005) for case in (ONE, TWO)),
    *(Must(case, "rows_apart", 0) for case in (ALONE, ONE, TWO)),
)


def all_met(results: Results) -> bool:
    """Whether every must was."""
    return all(must.is_met(results) for must in MUSTS)


def report(results: Results) -> str:
    """Medians with their ratio to one worker, what the cores allow, the musts and their count."""
    cases = (ALONE, ONE, TWO)
    lines = [f"| | {' | '.join(cases)} |", "|---" * (1 + len(cases)) + "|"]
    for figure, what in FIGURES.items():
        one = results.median(SCENARIO, figure, ONE)
        cells = [_cell(results.median(SCENARIO, figure, case), one) for case in cases]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    lines += ["", f"Medians; in brackets the ratio to {ONE}. {_bound(results)}", ""]
    lines += ["| case | figure | must | reached | |", "|---|---|---|---|---|"]
    lines += [must.line(results) for must in MUSTS]
    met = sum(must.is_met(results) for must in MUSTS)
    return "\n".join([*lines, "", f"musts met: {met} of {len(MUSTS)}", ""])


def _bound(results: Results) -> str:
    """How many requests the machine's cores could have sent and answered, had none been idle."""
    costs = ("cpu_s_per_1000", "server_cpu_s_per_1000")
    cost_s = sum(results.median(SCENARIO, figure, TWO) or 0.0 for figure in costs)
    most_per_s = 1000 * len(CORES) / cost_s if cost_s else 0.0
    return (
        f"Two workers, master and server on {len(CORES)} cores could do"
        f" {most_per_s:.0f} requests/s at this cost."
    )


def _cell(value: float | None, one: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
    return text + (f" ({value / one:.2f})" if one else "")
