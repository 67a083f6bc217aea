"""The frozen values a workload is made of: documents, questions, contexts and requests."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Document:
    """One text of the corpus."""

    doc_id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question and the document that answers it."""

    question_id: str
    text: str
    doc_id: str


@dataclass(frozen=True, slots=True)
class Context:
    """A prefix that many requests share byte for byte, with its length in the model's tokens."""

    context_id: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Draw:
    """One position of the swarm-wide stream, before any text is made.

    `index` counts the whole swarm's requests from 0, `question_number` the questions asked of
    that context. `root` is the index of the draw that first sent this prompt; it equals `index`
    when the prompt is new.
    """

    index: int
    context_index: int
    question_number: int
    root: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a user sends: the context first, the question last, and how long a reply it wants.

    `index` and `root` are those of its draw. `prompt` holds the true context, `context_id`;
    `label` is the one that a host is told. Requests of one `session_id` are turns of a
    conversation, each sent after the one before it has ended.
    """

    index: int
    root: int
    context_id: str
    question_id: str
    question: str
    prompt: str
    label: str
    max_tokens: int
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that go out at once, in this order. `index` counts the swarm's batches from 0."""

    index: int
    requests: tuple[Request, ...]
    session_id: ClassVar[str] = ""
