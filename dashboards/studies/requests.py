"""The answered requests of a cell as columns, and what share of labels was right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from dashboards.studies.cell import Cells
from dashboards.studies.wording import percent
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import read_run
from loadgen.compare.series import series_of
from loadgen.errors import UsageError
from loadgen.runs.columns import Flags, Floats, Indices
from loadgen.runs.recorded import RecordedRun
from loadgen.runs.requests import Requests as Sent


@dataclass(frozen=True, slots=True)
class AnsweredRequests:
    """`ok` requests in the order in which they were sent; NaN where a figure is not known."""

    context_id: NDArray[np.str_]
    batch_id: NDArray[np.str_]
    repeat: Flags
    prompt_tokens: Floats
    cached_tokens: Floats
    ttft_ms: Floats
    first_token_s: Floats

    @classmethod
    def read(cls, run: Path) -> "AnsweredRequests":
        """Those of a run directory. Raises UsageError."""
        requests = _requests(run)
        requests = requests.taken(requests.ok)
        return cls(
            np.asarray(requests.text("context_id").as_list(), dtype=np.str_),
            np.asarray(requests.text("batch_id").as_list(), dtype=np.str_),
            requests.flag("repeat") == 1,
            requests.number("prompt_tokens"),
            np.nan_to_num(requests.number("cached_tokens")),
            requests.number("ttft_ms"),
            requests.number("first_token_s"),
        )

    @classmethod
    def joined(cls, parts: Sequence["AnsweredRequests"]) -> "AnsweredRequests":
        """Those of several runs, one after the other."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )

    def __len__(self) -> int:
        return len(self.ttft_ms)

    def those(self, which: Flags) -> "AnsweredRequests":
        """Only some of them."""
        return AnsweredRequests(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def is_hit(self) -> Flags:
        """Whether more than half of the prompt came from a cache."""
        return self.cached_tokens > self.prompt_tokens / 2

    def turns(self) -> tuple[int, int]:
        """How often the engine turned to another context, in the order of first tokens, and the
        fewest turns there could be: one for each context, of each batch where there are batches."""
        taken = fewest = 0
        for batch in dict.fromkeys(self.batch_id.tolist()):
            of_batch = self.batch_id == batch
            order = np.argsort(self.first_token_s[of_batch], kind="stable")
            served = self.context_id[of_batch][order]
            taken += 1 + int((served[1:] != served[:-1]).sum())
            fewest += len(set(served.tolist()))
        return taken, fewest


def strips(runs: Mapping[str, AnsweredRequests]) -> tuple[list[str], dict[str, Indices]]:
    """Contexts in the order of their first service, and for each name the order of service as
    positions in them."""
    place: dict[str, int] = {}
    orders: dict[str, Indices] = {}
    for name, run in runs.items():
        served = run.context_id[np.argsort(run.first_token_s, kind="stable")].tolist()
        numbers = [place.setdefault(context, len(place)) for context in served]
        orders[name] = np.asarray(numbers, dtype=np.intp)
    return list(place), orders


@dataclass(frozen=True, slots=True)
class JudgedLabels:
    """Of each request with a label the question, variations of it taken for the same, and whether
    the label was right."""

    question: tuple[str, ...]
    right: Flags


def labels_of(run: Path) -> JudgedLabels:
    """Those of a run directory. Raises UsageError."""
    requests = _requests(run)
    right = requests.flag("label_correct")
    known = [
        (question.partition("~")[0], bool(correct))
        for question, correct in zip(
            requests.text("question_id").as_list(), right.tolist(), strict=True
        )
        if not np.isnan(correct)
    ]
    return JudgedLabels(
        tuple(question for question, _ in known),
        np.asarray([correct for _, correct in known], dtype=np.bool_),
    )


def repeated_part(run: Path, repeated: bool) -> ComparedRun:
    """The requests of a run that were repeats of an old one, or those that were not, as a run of
    their own. Both parts count as of one seed, so that they are paired. Raises UsageError."""
    requests = _requests(run)
    part = requests.taken(requests.flag("repeat") == float(repeated))
    name = f"{run} ({'repeats' if repeated else 'first uses'})"
    return ComparedRun(name, series_of(part), facts={"seed": str(run)})


def without_retrieval(run: Path) -> ComparedRun:
    """The run with the time of each retrieval taken out of the time to first token, so that it can
    be set beside runs that retrieve nothing. Raises UsageError."""
    requests = _requests(run)
    numbers = dict(requests.columns.numbers)
    numbers["ttft_ms"] = numbers["ttft_ms"] - np.nan_to_num(numbers["retrieval_ms"])
    left = replace(requests, columns=replace(requests.columns, numbers=numbers))
    return ComparedRun(str(run), series_of(left), facts=read_run(run).facts)


def _requests(run: Path) -> Sent:
    requests = RecordedRun(run, is_strict=True).requests.sent
    if not requests.columns.has(("repeat", "context_id", "label_correct")):
        raise UsageError(f"{run} has not the requests.csv of a run: run the study again")
    return requests


LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A share, 0 to 1, with Wilson's interval (1927)."""

    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """`83 % (75 % to 90 %)`."""
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)})"


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
        found = labels_of(cell.run)
        for question, is_right in zip(found.question, found.right.tolist(), strict=True):
            right.setdefault(question, []).append(is_right)
    return {question: sum(each) / len(each) for question, each in right.items()}


def share_right(cells: Cells) -> LabelShare | None:
    """The share of right labels over the requests of all cells; None without any. The interval is
    for as many samples as there are different questions: one that returns is answered alike."""
    found = [labels_of(cell.run) for cell in cells]
    right = np.concatenate([each.right for each in found]) if found else np.zeros(0)
    if not len(right):
        return None
    share = float(right.mean())
    questions = len({question for each in found for question in each.question})
    interval = binomtest(round(share * questions), questions).proportion_ci(LEVEL, "wilson")
    return LabelShare(share, min(share, float(interval.low)), max(share, float(interval.high)))
