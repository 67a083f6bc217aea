"""What study task4 says of order by labels of KV, of runs made by hand."""

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
from study_cells import Made, cell, noisy

from dashboards.studies.cell import ORDERED, PLAIN, Cells
from dashboards.studies.task4.serving import (
    SERVING,
    serving_definition,
    serving_sentences,
    serving_tables,
)
from loadgen.sweep.matrix import cells_of

FIRST_COME_MS, LABEL_MS = 300.0, 40.0


def served(folder: Path, kv_ms: float, kv_right: float) -> Cells:
    """First come takes 300 ms, the true label 100; of found ones 40 ms are the label's."""
    arms = (
        (PLAIN, "oracle", FIRST_COME_MS, 1.0),
        (ORDERED, "oracle", 100.0, 1.0),
        (ORDERED, "none", 150.0, None),
        (ORDERED, "rag", 140.0, 1.0),
        (ORDERED, "kv", kv_ms, kv_right),
    )
    cells = []
    for repeat in (1, 2, 3):
        for at, (target, labels, ttft_ms, right) in enumerate(arms):
            took = {"retrieval_p50_ms": LABEL_MS, "retrieval_share": 0.25}
            found = labels in ("rag", "kv")
            times = noisy(ttft_ms, 0.05, 10 * repeat + at)
            known = [] if right is None else [n < right * len(times) for n in range(len(times))]
            made = Made(times, right=known, retrieval_ms=[LABEL_MS] * len(times) if found else ())
            figures: dict[str, float | None] = {"label_accuracy": right, "hit_rate": 0.5}
            figures |= took if found else {}
            cells.append(
                cell(
                    *(folder, SERVING, made, repeat),
                    figures=figures,
                    target=target,
                    labels=labels,
                )
            )
            facts = {"seed": repeat, "exit_code": 0, "rag": {"documents": 4}}
            (cells[-1].run / "run.json").write_text(json.dumps(facts))
    return Cells(tuple(cells))


def test_a_label_that_finds_the_document_is_told_with_its_price(tmp_path: Path) -> None:
    said = "\n".join(serving_sentences(served(tmp_path, 140.0, 1.0), False))
    assert "KV's label 100 %" in said
    assert "one of 4 documents drawn at random 25 %" in said
    assert "KV's label 40.0 ms (25 % of the time to first token)" in said
    # Order by it takes 140 ms, 100 without the label's own time.
    ordered, apart = (
        next(line for line in said.splitlines() if line.startswith(f"Ordered by KV's label{more}"))
        for more in (": ", ", retrieval left out: ")
    )
    assert "(-5" in ordered
    assert "(-6" in apart
    assert "weights are random" not in said
    # What order by the prompts gives for nothing, 150 ms, is nearly that.
    assert "ms by the prompts alone and 1" in said


def test_a_label_that_finds_nothing_is_told_so(tmp_path: Path) -> None:
    cells = served(tmp_path, 400.0, 0.0)
    said = "\n".join(serving_sentences(cells, True))
    assert "KV's label 0 %" in said
    assert "(+3" in next(line for line in said.splitlines() if "Ordered by KV's label:" in line)
    assert "**The weights are random**" in said
    contrasts, others, each = serving_tables(cells)
    named = [row[0] for row in contrasts.rows]
    assert named[:3] == ["the true label", "the prompts alone", "KV's label"]
    assert not any("RAG" in name for name in named), "whose prompts are others"
    assert others.rows[0][0] == "RAG's label"
    assert len(each.rows) == 5


def test_labels_that_go_with_other_prompts_are_not_ranked_with_the_rest(tmp_path: Path) -> None:
    """With RAG's label a request carries the context that was found."""
    said = [*serving_sentences(served(tmp_path, 140.0, 1.0), False)]
    at = next(at for at, line in enumerate(said) if "not to be ranked with these" in line)
    ordered = [n for n, line in enumerate(said) if line.startswith("Ordered by")]
    assert {n > at for n in ordered if "RAG" in said[n]} == {True}
    assert {n > at for n in ordered if "RAG" not in said[n]} == {False}


def test_without_a_run_nothing_is_claimed() -> None:
    assert next(iter(serving_sentences(Cells(()), False))) == "Not measured on an engine."


def test_all_arms_have_the_same_requests_and_model() -> None:
    definition = serving_definition({"model": "m", "contexts": 3}, quick=True)
    plans = [plan.options for plan in cells_of(definition)]
    assert [plan["labels"] for plan in plans] == ["oracle", "oracle", "none", "rag", "kv"]
    assert {(plan["model"], plan["contexts"]) for plan in plans} == {("m", 3)}
    assert [plan.get("policy") for plan in plans] == [None, *["lpm"] * 4], "which goes by labels"
    assert definition.repeats == 1 < serving_definition({}, quick=False).repeats
