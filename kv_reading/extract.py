"""From a recording to features: chunks found by token ids, decoded, pooled."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kv_reading import KvError
from kv_reading.features import FeatureSet, pooled, write_features
from kv_reading.kv import Floats, Kv, ReferenceModel, read_shape
from kv_reading.recording import CHUNKS, KvRequest, read_facts, read_requests
from kv_reading.stored import Missing, StoredKv, open_stored

FEATURES_NPZ = "features.npz"
STORED, COMPUTED = "LMCache", "transformers"
PROMPT, QUESTION = "prompt", "question"
SHORT = "short"


@dataclass(frozen=True, slots=True)
class Extraction:
    """Where the features are, and lines on how they were had."""

    path: Path
    lines: tuple[str, ...]


@dataclass(slots=True)
class _Arm:
    requests: list[KvRequest] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)


def extract(run: Path, model: Path | None = None, reference: bool = False) -> Extraction:
    """Write features.npz into the recording, one arm for each kind of prompt and span of it.

    With `reference` no stored KV is read; short questions fill no chunk and come from a forward
    pass always. A request whose chunks are not all there is left out. Raises KvError, also where
    stored KV is not what a forward pass of the model gives.
    """
    facts, requests = read_facts(run), read_requests(run)
    folder = model or Path(facts.model)
    computing = ReferenceModel(folder)
    stored: StoredKv | None = None
    lines: list[str] = []
    if not reference:
        long = [each for each in requests if not each.prompt.startswith(SHORT)]
        stored = open_stored(run / CHUNKS, facts.chunk_tokens, read_shape(folder), computing, long)
        lines.append(stored.told)
    arms: dict[str, _Arm] = {}
    missing: Counter[str] = Counter()
    for request in requests:
        kv = _kv(request, stored, computing)
        if isinstance(kv, Missing):
            missing[kv.reason] += 1
        else:
            _add(arms, request, kv)
    lines += [f"left out {count}: {reason}" for reason, count in missing.most_common(5)]
    if not any(not name.startswith(SHORT) for name in arms):
        raise KvError(f"{run} holds no request whose chunks are all there: record again")
    write_features(run / FEATURES_NPZ, [_features(*arm, reference) for arm in arms.items()])
    lines += [f"{name}: {len(arm.rows)} requests" for name, arm in arms.items()]
    return Extraction(run / FEATURES_NPZ, tuple(lines))


def _kv(request: KvRequest, stored: StoredKv | None, computing: ReferenceModel) -> Kv | Missing:
    if stored is None or request.prompt.startswith(SHORT):
        return computing.kv(request.token_ids)
    return stored.kv(request.token_ids)


def _add(arms: dict[str, _Arm], request: KvRequest, kv: Kv) -> None:
    spans = {QUESTION: kv.part(request.question_from)}
    if request.prompt == "own":
        spans[PROMPT] = kv
    for span, tokens in spans.items():
        arm = arms.setdefault(f"{request.prompt}/{span}", _Arm())
        arm.requests.append(request)
        arm.rows.append(pooled(tokens))


def _features(name: str, arm: _Arm, reference: bool) -> FeatureSet:
    def column(values: Sequence[str]) -> "np.ndarray[tuple[int, ...], np.dtype[np.str_]]":
        return np.array(values, dtype=np.str_)

    computed = reference or name.startswith(SHORT)
    return FeatureSet(
        arm=name,
        source=COMPUTED if computed else STORED,
        pooled=np.stack(arm.rows),
        question_ids=column([each.question_id for each in arm.requests]),
        topics=column([each.topic for each in arm.requests]),
        contexts=column([each.context for each in arm.requests]),
        texts=column([each.text for each in arm.requests]),
    )
