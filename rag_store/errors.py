"""What can go wrong. Every message names the thing, the value and the next step."""


class RagError(Exception):
    """Base of everything rag_store raises on purpose; `str(error)` is one line for the user."""

    exit_code = 1


class RagUsageError(RagError):
    """What was given is not what it must be."""

    exit_code = 2


class CorpusError(RagUsageError):
    """A corpus, its questions or its relevance judgements cannot be read, or hold nothing."""


class QueryError(RagUsageError):
    """A query is empty, too long or not text."""


class FingerprintError(RagUsageError):
    """The stored collection does not fit the settings."""


class RerankerError(RagError):
    """The model that reads what was found cannot be reached, or gives no scores."""


class RerankerRefusal(RerankerError):
    """The server does not take what it was sent: another model's name, too long a text, no key."""


class EmbedderError(RagError):
    """The embedder cannot be loaded or reached."""


class EmbedderRefusal(EmbedderError):
    """The server does not take what it was sent, now or later."""


class VectorError(EmbedderError):
    """The embedder answered, but not with vectors that can be used."""


class StoreError(RagError):
    """Chroma cannot be opened or reached, or does not hold what was asked for."""


REFUSALS = (QueryError, EmbedderRefusal, RerankerRefusal)
"""What is wrong with one query; the others may still be labelled."""
OF_A_TEXT = (EmbedderRefusal, VectorError)
"""Other texts may fare better; not so where an embedder is away or out of order."""
