"""What was found in a recording: the scores of all arms, what they were made from, their tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboards.studies.answer import MarkdownTable
from dashboards.studies.cell import Cells
from dashboards.studies.wording import percent
from kv_reading.arms import (
    CONTEXT,
    MAIN,
    OTHER,
    OWN,
    SHORT,
    SHORT_OWN,
    SWAPPED,
    WHOLE,
    ArmScore,
    LayerScore,
    Variant,
    arm_rows,
    layer_scores,
    variants,
)
from kv_reading.extract import FEATURES_NPZ
from kv_reading.features import FeatureChoice, FeatureSet, read_features
from kv_reading.recording import RunFacts, read_facts, read_library
from kv_reading.scores import Score, SeedEstimate

SEEDS, QUICK_SEEDS = 20, 8


@dataclass(frozen=True, slots=True)
class Findings:
    """`notes` are the lines of the extraction, the self-test among them; `serving` are runs on an
    engine, none where there was no such."""

    facts: RunFacts
    features: Mapping[str, FeatureSet]
    rows: tuple[ArmScore, ...]
    variants: tuple[Variant, ...]
    layers: tuple[LayerScore, ...]
    seeds: int
    notes: tuple[str, ...]
    serving: Cells

    def row(self, key: str, against: str = "topic") -> ArmScore | None:
        """An arm's row, None where it was not measured."""
        found = (row for row in self.rows if (row.key, row.against) == (key, against))
        return next(found, None)


def find(recording: Path, seeds: int, notes: tuple[str, ...], serving: Cells) -> Findings:
    """Score everything; takes minutes. Raises KvError, EmbedderError and RagError."""
    features = read_features(recording / FEATURES_NPZ)
    rows = arm_rows(features, read_library(recording), seeds)
    return Findings(
        facts=read_facts(recording),
        features=features,
        rows=tuple(rows),
        variants=tuple(variants(features[MAIN], seeds)),
        layers=tuple(layer_scores([features[a] for a in (MAIN, OWN) if a in features], seeds)),
        seeds=seeds,
        notes=notes,
        serving=serving,
    )


NAMES = {
    WHOLE: "context and question",
    OWN: "question, under its context",
    OTHER: "question, under another passage of its document",
    MAIN: "**question alone**",
    SWAPPED: "question, under another document",
    SHORT_OWN: "short question, under its context",
    SHORT: "short question alone",
}
PLAIN = {MAIN: "the questions' text", SHORT: "the short questions' text"}
SCORES = ("ARI", "mixed labels", "NMI", "purity", "silhouette", "labels right")


def arm_table(findings: Findings) -> MarkdownTable:
    """All arms, by k-means told the number of documents."""
    header = ("what is known", "from", "true label", "requests", "dimensions", *SCORES)
    return MarkdownTable(header, tuple(_arm(row) for row in findings.rows))


def variant_table(findings: Findings) -> MarkdownTable:
    """Other ways on the question alone."""
    header = ("clustering", "over tokens", "what", "reduced by", "dimensions", *SCORES)
    rows = (
        (
            each.method,
            each.choice.pool,
            taken(each.choice),
            each.reduction,
            str(each.score.dimensions),
            *_scores(each.score, each.score.centroid),
        )
        for each in findings.variants
    )
    return MarkdownTable(header, tuple(rows))


def taken(choice: FeatureChoice) -> str:
    """`keys and values`, and whether early layers count more."""
    weighted = ", early layers weighted" if choice.layer_weights else ""
    return f"{' and '.join(choice.parts)}{weighted}"


def layer_table(findings: Findings) -> MarkdownTable:
    """ARI of each layer, and the share of right labels by the nearest centroid."""
    lines = dict.fromkeys((each.arm, each.part) for each in findings.layers)
    header = ("layer", *(f"{NAMES[arm].strip('*')}: {part}" for arm, part in lines))
    found = {
        (each.arm, each.part, each.layer): within(each.score.ari)
        + ("" if each.score.centroid is None else f"; {percent(each.score.centroid)}")
        for each in findings.layers
    }
    numbers = sorted({each.layer for each in findings.layers})
    rows = ((str(n), *(found[arm, part, n] for arm, part in lines)) for n in numbers)
    return MarkdownTable(header, tuple(rows))


def _arm(row: ArmScore) -> tuple[str, ...]:
    _, _, arm = row.key.rpartition(":")
    name = PLAIN[arm] if ":" in row.key else NAMES[arm]
    against = "document of the context" if row.against == CONTEXT else "document of the question"
    size = "" if row.score.dimensions is None else str(row.score.dimensions)
    return (
        name,
        row.source,
        against,
        str(row.score.requests),
        size,
        *_scores(row.score, row.right),
    )


def _scores(score: Score, right: float | None) -> tuple[str, ...]:
    return (
        within(score.ari),
        within(score.permuted),
        within(score.nmi),
        within(score.purity),
        "" if score.silhouette is None else f"{score.silhouette:.2f}",
        "" if right is None else percent(right),
    )


def within(value: SeedEstimate) -> str:
    """`0.09 (0.05 to 0.13)`."""
    return f"{value.mean:.2f} ({value.low:.2f} to {value.high:.2f})"
