"""The answered requests of a cell, and what share of labels was right."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from dashboards.figures.requests import context_changes
from dashboards.studies.cell import Cells
from dashboards.studies.contrast import LEVEL
from dashboards.studies.wording import percent
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import read_run
from loadgen.compare.series import series_of
from loadgen.errors import UsageError
from loadgen.runs.columns import Flags, Indices
from loadgen.runs.recorded import RecordedRun
from loadgen.runs.requests import Requests


def answered(run: Path) -> Requests:
    """The `ok` requests of a run directory, in the order of sending. Raises UsageError."""
    requests = _sent(run)
    return requests.taken(requests.ok)


def is_hit(requests: Requests) -> Flags:
    """Whether more than half of the prompt came from a cache."""
    return np.asarray(requests.cached_share > 1 / 2)


def turns(requests: Requests) -> tuple[int, int]:
    """How often the engine turned to another context, in the order of first tokens, and the
    fewest turns there could be: one for each context, of each batch where there are batches."""
    taken = fewest = 0
    batches, contexts = requests.text("batch_id").codes, requests.text("context_id").codes
    first_token_s = requests.number("first_token_s")
    for batch in np.unique(batches):
        of_batch = batches == batch
        order = np.argsort(first_token_s[of_batch], kind="stable")
        served = contexts[of_batch][order]
        taken += 1 + context_changes(served)
        fewest += len(np.unique(served))
    return taken, fewest


def orders_of_service(runs: Mapping[str, Requests]) -> tuple[list[str], dict[str, Indices]]:
    """Contexts in the order of their first service, and for each name the order of service as
    positions in them."""
    place: dict[str, int] = {}
    orders: dict[str, Indices] = {}
    for name, run in runs.items():
        contexts = run.text("context_id").as_list()
        served = np.argsort(run.number("first_token_s"), kind="stable").tolist()
        numbers = [place.setdefault(contexts[at], len(place)) for at in served]
        orders[name] = np.asarray(numbers, dtype=np.intp)
    return list(place), orders


def labels_of(run: Path) -> list[tuple[str, bool]]:
    """Of each request of a run directory with a label the question, variations of it taken for
    the same, and whether the label was right. Raises UsageError."""
    requests = _sent(run)
    asked = requests.text("question_id").as_list()
    right = requests.flag("label_correct")
    return [
        (asked[at].partition("~")[0], bool(right[at])) for at in np.flatnonzero(~np.isnan(right))
    ]


def repeated_part(run: Path, repeated: bool) -> ComparedRun:
    """The requests of a run that were repeats of an old one, or those that were not, as a run of
    their own. Both parts count as of one seed, so that they are paired. Raises UsageError."""
    requests = _sent(run)
    part = requests.taken(requests.flag("repeat") == float(repeated))
    name = f"{run} ({'repeats' if repeated else 'first uses'})"
    return ComparedRun(name, series_of(part), facts={"seed": str(run)})


def without_retrieval(run: Path) -> ComparedRun:
    """The run with the time of each retrieval taken out of the time to first token, so that it can
    be set beside runs that retrieve nothing. Raises UsageError."""
    requests = _sent(run)
    numbers = dict(requests.columns.numbers)
    numbers["ttft_ms"] = numbers["ttft_ms"] - np.nan_to_num(numbers["retrieval_ms"])
    left = replace(requests, columns=replace(requests.columns, numbers=numbers))
    return ComparedRun(str(run), series_of(left), facts=read_run(run).facts)


def _sent(run: Path) -> Requests:
    requests = RecordedRun(run, is_strict=True).requests.sent
    if not requests.columns.has(("repeat", "context_id", "label_correct")):
        raise UsageError(f"{run} has not the requests.csv of a run: run the study again")
    return requests


@dataclass(frozen=True, slots=True)
class PairedQuestions:
    """Questions that were asked of both sides: how many were right more often on the one, and on
    the other. `p` is of the sign test over those (McNemar's, exact)."""

    questions: int
    first: int
    second: int
    p: float


def paired(first: Cells, second: Cells) -> PairedQuestions | None:
    """The same questions against each other; None where no question was asked of both."""
    one, other = (_by_question(cells) for cells in (first, second))
    both = one.keys() & other.keys()
    if not both:
        return None
    more, less = (sum(a[each] > b[each] for each in both) for a, b in ((one, other), (other, one)))
    p = float(binomtest(more, more + less).pvalue) if more + less else 1.0
    return PairedQuestions(len(both), more, less, p)


def _by_question(cells: Cells) -> dict[str, float]:
    """The share of right labels of each question, over all runs."""
    right: dict[str, list[bool]] = {}
    for cell in cells:
        for question, is_right in labels_of(cell.run):
            right.setdefault(question, []).append(is_right)
    return {question: sum(each) / len(each) for question, each in right.items()}


def share_right(cells: Cells) -> str:
    """The share of right labels over the requests of all cells with Wilson's interval (1927), as
    `83 % (75 % to 90 %)`; empty without any. The interval is for as many samples as there are
    different questions: one that returns is answered alike."""
    found = [label for cell in cells for label in labels_of(cell.run)]
    if not found:
        return ""
    share = sum(is_right for _, is_right in found) / len(found)
    questions = len({question for question, _ in found})
    interval = binomtest(round(share * questions), questions).proportion_ci(LEVEL, "wilson")
    low, high = min(share, float(interval.low)), max(share, float(interval.high))
    return f"{percent(share)} ({percent(low)} to {percent(high)})"
