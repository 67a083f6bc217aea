"""Which question a request was about: two runs of one workload and seed agree in every request."""

from collections.abc import Sequence

from loadgen.compare.csv_table import CsvTable
from loadgen.compare.run import Run, Stream

COLUMNS = ("context_id", "question_id")


def read_stream(table: CsvTable) -> Stream:
    """That of a `requests.csv`, in whose stream a request has the same id in every run."""
    if not table.has(COLUMNS):
        return {}
    asked = zip(*(table.text(column) for column in COLUMNS), strict=True)
    return {
        number: about
        for number, about in zip(table.text("request_id"), asked, strict=True)
        if about[0]
    }


def conflict(base: Sequence[Run], new: Sequence[Run]) -> str | None:
    """Words for a request in which a run has nobody on the other side that agrees with it; None
    where all agree, or too little is known."""
    for side, other in ((base, new), (new, base)):
        for run in side:
            found = [_first(run.stream, each.stream) for each in other]
            if all(found):
                return found[0]
    return None


def is_checked(base: Sequence[Run], new: Sequence[Run]) -> bool:
    """Whether each run has requests in common with one of the other side."""
    return all(
        any(run.stream.keys() & each.stream.keys() for each in other)
        for side, other in ((base, new), (new, base))
        for run in side
    )


def _first(one: Stream, other: Stream) -> str | None:
    for number, about in one.items():
        if other.get(number, about) != about:
            return f"request {number[:20]} is {_named(about)} against {_named(other[number])}"
    return None


def _named(about: tuple[str, str]) -> str:
    return repr("/".join(about)[:60])
