"""What was found in a recording: the scores of all arms, and what they were made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboards.studies.cell import Cells
from kv_reading.arms import (
    MAIN,
    OWN,
    ArmScore,
    LayerScore,
    Variant,
    arm_rows,
    layer_scores,
    variants,
)
from kv_reading.extract import FEATURES_NPZ
from kv_reading.features import FeatureSet, read_features
from kv_reading.recording import RunFacts, read_facts, read_library

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
