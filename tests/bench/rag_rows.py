"""The rows that are kept, one CSV file for each kind; the report is made of these files alone."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class LabelRow:
    """Labels asked of one library, `clients` at a time.

    `search` is exact or HNSW, `way` in process or HTTP, `load` idle or beside vLLM, `embedding`
    computed or kept. `rest` is a label without embedding: queue, search and fuse, of which
    `search` and `fuse` have columns of their own; `answer` is what the client waited. `lag` is the
    service's own of its event loop, -1 without a service. `others_cpu` is the share of the machine
    (0 to 1) that other programs took.
    """

    FILE: ClassVar[str] = "labels.csv"
    chunks: int
    search: str
    way: str
    load: str
    clients: int
    embedding: str
    labels: int
    rest_p50_ms: float
    rest_p95_ms: float
    rest_p99_ms: float
    search_p99_ms: float
    fuse_p99_ms: float
    embed_p50_ms: float
    answer_p50_ms: float
    answer_p95_ms: float
    answer_p99_ms: float
    labels_per_s: float
    lag_p50_ms: float
    lag_p95_ms: float
    lag_p99_ms: float
    others_cpu: float


@dataclass(frozen=True, slots=True)
class NeighbourRow:
    """The 10 nearest chunks of a library by the HNSW index and by comparing all."""

    FILE: ClassVar[str] = "neighbours.csv"
    chunks: int
    queries: int
    recall: float
    exact_p50_ms: float
    exact_p99_ms: float
    hnsw_p50_ms: float
    hnsw_p99_ms: float


@dataclass(frozen=True, slots=True)
class SwarmRow:
    """What the swarm saw that loaded vLLM meanwhile."""

    FILE: ClassVar[str] = "swarm.csv"
    requests: int
    failed: int
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float


@dataclass(frozen=True, slots=True)
class EmbedderRow:
    """Top-1 of a corpus's development questions with one embedder; shares from 0 to 1."""

    FILE: ClassVar[str] = "embedders.csv"
    corpus: str
    embedder: str
    questions: int
    dense: float
    dense_low: float
    dense_high: float
    whole_document: float
    bm25: float
    hybrid: float
    embed_p50_ms: float


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Top-1 among so many documents, and the 10 nearest chunks by the HNSW index and exactly."""

    FILE: ClassVar[str] = "sizes.csv"
    documents: int
    chunks: int
    questions: int
    top1: float
    recall: float
    exact_p50_ms: float
    exact_p99_ms: float
    hnsw_p50_ms: float
    hnsw_p99_ms: float
