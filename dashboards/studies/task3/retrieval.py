"""How often retrieval is right in the loop, and what it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dashboards.report.wording import listed
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cell, Cells
from dashboards.studies.corpora import all_documents
from dashboards.studies.pictures import Line, against, line_of
from dashboards.studies.share import LEVEL, paired, share_right
from dashboards.studies.table import cell_table
from dashboards.studies.wording import count, crowd, duration, percent

COLUMNS = (
    "requests",
    "label_accuracy",
    "refused_share",
    "retrieval_p50_ms",
    "ttft_p50_ms",
    "retrieval_share",
)


def documents(cells: Cells) -> Answer:
    """Accuracy and time of the labels against the number of documents to choose from."""
    cells = _counted(cells)
    shares = {
        size: share_right(cells.where(documents=size).counted) for size in cells.values("documents")
    }
    known = {size: share for size, share in shares.items() if share is not None}
    parts = [f"{share.words} with {count(float(size))} documents" for size, share in known.items()]
    picture = Picture(
        "documents",
        against(list(_by_documents(cells)), "documents in the library"),
        "accuracy of labels and time of retrieval against the number of documents",
    )
    return Answer(
        "How accurate are labels in the loop, against the number of documents?",
        (
            f"The share of right labels is {listed(parts)}; the intervals count each question once,"
            " however often it was asked."
            if parts
            else "Not measured.",
            *_fewer(cells.counted, [*known]),
            *_times(cells),
        ),
        (cell_table(cells, ("documents", "users"), COLUMNS),),
        (picture,),
    )


def _counted(cells: Cells) -> Cells:
    """With the number of documents as a setting: that of the corpus's folder, or all there are."""
    return Cells(
        tuple(
            replace(cell, settings={**cell.settings, "documents": _number(cell)}) for cell in cells
        )
    )


def _number(cell: Cell) -> str:
    return cell.settings.get("corpus") or str(all_documents())


def _fewer(cells: Cells, sizes: Sequence[str]) -> Iterator[str]:
    """The fewest documents against the most, by the questions that were asked with both."""
    if len(sizes) < 2:
        return
    few, many = sizes[0], sizes[-1]
    found = paired(cells.where(documents=few), cells.where(documents=many))
    if found is None:
        return
    told = (
        f"of {count(found.questions)} questions asked with both, {count(found.first)} were right"
        f" more often with {few} documents and {count(found.second)} with {many} (sign test,"
        f" p = {found.p:.2g})"
    )
    if found.p >= 1 - LEVEL:
        yield f"There is no evidence that accuracy differs between these: {told}."
        return
    better, worse = (few, many) if found.first > found.second else (many, few)
    yield f"Labels are worse with {worse} documents than with {better}: {told}."


def _times(cells: Cells) -> Iterator[str]:
    parts = [
        f"{duration(took)} with {count(float(size))}"
        for size in cells.values("documents")
        if (took := cells.where(documents=size).median("retrieval_p50_ms")) is not None
    ]
    if parts:
        yield f"A retrieval takes (median) {listed(parts)} documents to choose from."


def _by_documents(cells: Cells) -> Iterator[tuple[str, str, list[Line]]]:
    yield (
        "Labels",
        "% right",
        [line_of("", cells, "documents", "label_accuracy", 100)],
    )
    yield "Retrieval", "p50, ms", [line_of("", cells, "documents", "retrieval_p50_ms")]


def retrieval(cells: Cells) -> Answer:
    """Retrieval's part of the time to first token, against the number of users."""
    said = [
        f"{percent(share)} with {crowd(users)}"
        for users in cells.values("users")
        if (share := cells.where(users=users).median("retrieval_share")) is not None
    ]
    took = [
        f"{duration(middle_ms)} with {crowd(users)}"
        for users in cells.values("users")
        if (middle_ms := cells.where(users=users).median("retrieval_p50_ms")) is not None
    ]
    parts = [
        ("Part of TTFT", "%", [line_of("", cells, "users", "retrieval_share", 100)]),
        (
            "Median times",
            "ms",
            [
                line_of("retrieval", cells, "users", "retrieval_p50_ms"),
                line_of("time to first token", cells, "users", "ttft_p50_ms"),
            ],
        ),
    ]
    picture = Picture(
        "retrieval", against(parts, "users"), "retrieval's part of the time to first token"
    )
    return Answer(
        "How much of the time to first token is retrieval?",
        (
            f"Retrieval's share of it is {listed(said)}." if said else "Not measured.",
            *([f"A retrieval takes (median) {listed(took)}."] if took else ()),
        ),
        (cell_table(cells, ("users", "target"), COLUMNS),),
        (picture,),
    )
