"""The page says what was found: made here from features of made-up models."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from dashboards.studies.cell import Cells
from dashboards.studies.overview import read_summary
from dashboards.studies.page import Provenance
from dashboards.studies.task4.findings import Findings
from dashboards.studies.task4.page import write_page
from kv_reading.arms import (
    CONTEXT,
    MAIN,
    OWN,
    RAG,
    SWAPPED,
    TOPIC,
    WHOLE,
    ArmScore,
    layer_scores,
    variants,
)
from kv_reading.features import FeatureChoice, FeatureSet, matrix
from kv_reading.recording import RunFacts
from kv_reading.scores import score, score_groups

DOCUMENTS, QUESTIONS, SEEDS = 5, 4, 2
TOPICS = np.repeat([f"d{at}" for at in range(DOCUMENTS)], QUESTIONS)
CONTEXTS = np.tile([f"d{at}" for at in range(DOCUMENTS)], QUESTIONS)


def arm(name: str, known: Sequence[str], signal: float) -> FeatureSet:
    """Two layers, of which the second knows `known`, as loud as `signal`."""
    rng = np.random.default_rng(len(name))
    pooled = rng.normal(size=(len(known), 2, 2, 2, 1, 8))
    names, at = np.unique(known, return_inverse=True)
    pooled[:, :, :, 1, 0] += signal * rng.normal(size=(len(names), 8))[at][:, None, None]
    texts = np.array([f"text {number}" for number in range(len(known))])
    return FeatureSet(name, "LMCache", pooled.astype(np.float32), texts, TOPICS, CONTEXTS, texts)


def findings(signal: float, random_weights: bool = True) -> Findings:
    features = {
        each.arm: each
        for each in (
            arm(WHOLE, TOPICS, 9),
            arm(OWN, TOPICS, 9),
            arm(MAIN, TOPICS, signal),
            arm(SWAPPED, CONTEXTS, 9),
        )
    }
    rows = []
    for each in features.values():
        for against in (TOPIC, CONTEXT) if each.arm == SWAPPED else (TOPIC,):
            labels = CONTEXTS if against == CONTEXT else TOPICS
            found = score(matrix(each, FeatureChoice()), labels, seeds=SEEDS)
            rows.append(ArmScore(each.arm, each.source, against, found, found.centroid))
    retrieved = score_groups(TOPICS, np.unique(TOPICS, return_inverse=True)[1], SEEDS)
    rows.append(ArmScore(f"{RAG}:{MAIN}", RAG, TOPIC, retrieved, 1.0))
    return Findings(
        facts=RunFacts("toy", random_weights, 128, 0),
        features=features,
        rows=tuple(rows),
        variants=tuple(variants(features[MAIN], SEEDS)),
        layers=tuple(layer_scores([features[MAIN], features[OWN]], SEEDS)),
        seeds=SEEDS,
        notes=("layout amx",),
        serving=Cells(()),
    )


def page(found: Findings, folder: Path) -> str:
    measured = Provenance("kvswarm study task4", "now", "a machine", "versions")
    return write_page(found, measured, folder).read_text(encoding="utf-8")


def test_a_model_that_knows_nothing_is_told_so(tmp_path: Path) -> None:
    text = page(findings(0.0), tmp_path)
    assert "With random weights, by the KV of the question alone: no better than chance" in text
    assert text.count("\n**With random weights, ") == text.count("<a id=")
    assert "**With random weights, long questions (LMCache), by adjusted Rand index: KV " in text
    assert "the context counts for more than the question" in text
    assert "KV is worse than RAG label" in text
    assert "**The weights are random.**" in text
    for picture in ("scatter", "neighbours", "similarity", "layers"):
        assert f"(task4-{picture}.svg)" in text
        assert (tmp_path / f"task4-{picture}.svg").read_text().startswith("<?xml")
    summary = read_summary(tmp_path / "task4.json")
    assert summary is not None
    assert len(summary.entries) == text.count("<a id=")


def test_a_trained_model_that_knows_is_told_so(tmp_path: Path) -> None:
    text = page(findings(9.0, random_weights=False), tmp_path)
    assert "With a trained model, by the KV of the question alone: mostly; adjusted Rand" in text
    assert text.count("\n**With a trained model, ") == text.count("<a id=")
    assert "weights are random" not in text
    assert text.startswith("# Task 4 with a trained model")
    assert "(task4-trained-layers.svg)" in text
    assert {each.suffix for each in tmp_path.glob("task4-trained*")} == {".md", ".json", ".svg"}
    assert not (tmp_path / "task4.md").exists()  # of random ones, which stays beside it
    # Only the second layer knows it.
    layers = text[text.index("| layer |") :].splitlines()[2:4]
    first, second = (float(line.split("|")[2].split()[0]) for line in layers)
    assert first < 0.5 < second
    assert "By the nearest centroid the share of right labels goes from" in text
    assert "100 % (keys of layer 1)" in text or "100 % (values of layer 1)" in text
