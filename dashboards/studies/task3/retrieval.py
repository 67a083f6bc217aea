"""How often retrieval is right in the loop, and what it costs."""

from collections.abc import Iterator
from dataclasses import replace

from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cell, Cells
from dashboards.studies.corpora import all_documents
from dashboards.studies.pictures import Line, against, line_of
from dashboards.studies.share import Share, share_right
from dashboards.studies.table import cell_table
from dashboards.studies.wording import count, crowd, duration, listed, percent

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
            f"The share of right labels is {listed(parts)}, with intervals for as many samples as"
            " there are different questions."
            if parts
            else "Not measured.",
            *_fewer(known),
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


def _fewer(known: dict[str, Share]) -> Iterator[str]:
    if len(known) < 2:
        return
    (few, first), *_, (many, last) = known.items()
    if last.high < first.low:
        yield f"With {many} documents labels are worse than with {few}."
    elif last.low > first.high:
        yield f"With {many} documents labels are better than with {few}."
    else:
        yield f"There is no evidence that accuracy differs between {few} and {many} documents."


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
        (f"Retrieval's share of it is {listed(said)}." if said else "Not measured.",),
        (cell_table(cells, ("users", "target"), COLUMNS),),
        (picture,),
    )
