"""Labels and documents as JSON objects."""

from dataclasses import asdict
from typing import Any

from rag_store.documents import Document
from rag_store.label import Label


def label_json(label: Label) -> dict[str, Any]:
    """All fields of the label; times in milliseconds."""
    return {
        "object": "label",
        "doc_id": label.doc_id,
        "score": label.score,
        "threshold": label.threshold,
        "margin": label.margin,
        "agree": label.agree,
        "candidates": [asdict(candidate) for candidate in label.candidates],
        "timings": {**asdict(label.timings), "total_ms": label.timings.total_ms},
    }


def retrieval_json(label: Label, document: Document | None) -> dict[str, Any]:
    """The label and the text of its document; null where the query was refused."""
    fields = ("doc_id", "title", "text")
    return {
        "object": "retrieval",
        "doc_id": label.doc_id,
        "document": {name: getattr(document, name) for name in fields} if document else None,
        "label": label_json(label),
    }
