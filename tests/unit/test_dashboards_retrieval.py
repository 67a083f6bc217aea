"""The pictures of runs whose contexts had to be found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import Page, record, requests, write_report_run

from dashboards.figures.retrieval import MOST_DOCUMENTS, RetrievalSeries, labels, retrieval
from dashboards.report.gallery import found_of
from dashboards.report.page import make_page
from dashboards.report.run_files import read_files


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "home"))


def found(wrong: dict[int, int], documents: int, **fields: Any) -> RetrievalSeries:
    """Ten requests about each document, of which so many had a wrong label."""
    document = np.arange(10 * documents) % documents
    right = np.ones(10 * documents)
    for number, count in wrong.items():
        right[np.flatnonzero(document == number)[:count]] = 0
    known: dict[str, Any] = {
        "at_s": np.arange(10.0 * documents),
        "retrieval_ms": np.full(10 * documents, 20.0),
        "ttft_ms": np.full(10 * documents, 80.0),
        "right": right,
        "document": document,
        "documents": tuple(f"document-{each}" for each in range(documents)),
    }
    return RetrievalSeries(**known | fields)


def test_a_page_shows_retrieval_and_labels_where_there_were_any(tmp_path: Path) -> None:
    sent = [
        record(each, "ab"[each % 2], retrieval_ms=20.0, label="a", label_correct=each % 2 == 0)
        for each in range(60)
    ]
    run = write_report_run(tmp_path / "found", [*sent, record(60)])
    shown = Page(make_page([run]))
    assert [each for each in shown.all("figure") if each.attributes["id"] == "retrieval"]
    (judged,) = shown.all("figure", id="labels")
    assert "label wrong" in judged.text
    kept = found_of(read_files(run, "found"))
    assert (kept.right == 1).sum() == (kept.right == 0).sum() == 30
    assert np.isnan([kept.right[60], kept.retrieval_ms[60]]).all()
    plain = Page(make_page([write_report_run(tmp_path / "plain", requests(40))]))
    assert not {"retrieval", "labels"} & {each.attributes["id"] for each in plain.all("figure")}


def test_the_share_of_a_span_is_that_of_all_its_requests() -> None:
    run = found({}, 2, ttft_ms=np.asarray([40.0] * 10 + [200.0] * 10))
    lower = retrieval({"run": run}).axes[1]
    shares = np.asarray(lower.lines[0].get_ydata())
    assert shares[0] == pytest.approx(0.5)
    assert shares[-1] == pytest.approx(0.1)


def test_documents_with_most_wrong_labels_stand_first_and_many_are_one_row() -> None:
    most_asked = np.where(np.arange(300) % 30 == 29, 0, np.arange(300) % 30)
    (axes,) = labels({"run": found({7: 9, 3: 2}, 30, document=most_asked)}).axes
    names = [each.get_text() for each in axes.get_yticklabels()]
    assert len(names) == MOST_DOCUMENTS
    assert names[:3] == ["document-7", "document-3", "document-0"]
    assert names[-1] == "18 others"
    assert sum(bar.get_width() for bar in axes.patches) == 300
