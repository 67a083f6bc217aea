"""Whether the longest request fits in the model, found out before any is sent."""

from loadgen.errors import ContextTooLong
from loadgen.workload.contexts import ContextBook
from loadgen.workload.lengths import Tokens
from loadgen.workload.page import variation
from loadgen.workload.prompt import QUESTION_MARKER
from loadgen.workload.settings import MIN_CONTEXT_TOKENS, WorkloadSettings

# Counting a large corpus would take long. Documents are looked at from the longest in bytes on,
# so many of them at most, and only those with more bytes than there is room for tokens.
CHECKED_DOCUMENTS = 64
OPENING_BYTES = 128

LATE_VERSION = 1_000_000


def check_fit(
    book: ContextBook,
    settings: WorkloadSettings,
    tokens: Tokens,
    max_model_len: int,
    cache_tokens: int | None,
    template_tokens: int,
) -> None:
    """Raise ContextTooLong when context, question and reply of some request do not fit.

    `max_model_len` is the model's window, `cache_tokens` what the engine's own KV cache holds
    (None: not known), `template_tokens` what the host adds to a prompt, all in tokens.
    """
    limit = max_model_len if cache_tokens is None else min(max_model_len, cache_tokens)
    question = _longest_question(book, tokens) + template_tokens
    room = limit - question - settings.output_tokens.high
    found = _too_long(book, settings, room)
    if found is None:
        return
    context_id, length = found
    needed = length + question + settings.output_tokens.high
    raise ContextTooLong(
        f"context {context_id!r} has {length} tokens, with question ({question}) and reply "
        f"({settings.output_tokens.high}) {needed}, but {_bounds(max_model_len, cache_tokens)}: "
        f"{_remedy(room, needed, cache_tokens)}"
    )


def _longest_question(book: ContextBook, tokens: Tokens) -> int:
    texts = (question.text for some in book.corpus.questions.values() for question in some)
    parts = QUESTION_MARKER, max(texts, key=len), variation(LATE_VERSION)
    return sum(map(tokens.count, parts))


def _too_long(book: ContextBook, settings: WorkloadSettings, room: int) -> tuple[str, int] | None:
    """Id and tokens of a context that is longer than `room`."""
    if settings.context_tokens is None:
        return _too_long_document(book, settings, room)
    if settings.context_tokens.high <= room:
        return None
    lengths = ((index, book.drawn_tokens(index) or 0) for index in range(settings.contexts))
    found = ((book.context_id(index), length) for index, length in lengths if length > room)
    return next(found, None)


def _too_long_document(
    book: ContextBook, settings: WorkloadSettings, room: int
) -> tuple[str, int] | None:
    # A composed context is as long as the mean document: it fits where the longest one does.
    documents = book.corpus.documents[: settings.contexts]
    sizes = ((len(document.text.encode()), index) for index, document in enumerate(documents))
    longest = sorted(((size, i) for size, i in sizes if size + OPENING_BYTES > room), reverse=True)
    contexts = (book.context(index) for _, index in longest[:CHECKED_DOCUMENTS])
    found = ((context.context_id, context.tokens) for context in contexts if context.tokens > room)
    return next(found, None)


def _bounds(max_model_len: int, cache_tokens: int | None) -> str:
    window = f"the model's window is {max_model_len} tokens"
    return window if cache_tokens is None else f"{window} and the KV cache holds {cache_tokens}"


def _remedy(room: int, needed: int, cache_tokens: int | None) -> str:
    shorter = f"give --context-tokens {room} or less" if room >= MIN_CONTEXT_TOKENS else ""
    larger = "raise --kv-tokens" if cache_tokens is not None and cache_tokens < needed else ""
    return " or ".join(filter(None, (shorter or "lower --output-tokens", larger)))
