"""Many documents asked about at once, so many and no more."""

import asyncio
from collections.abc import Callable, Sequence

from rag_store.documents import Document
from rag_store.expansion.writer import QuestionWriter

Written = Callable[[Document, tuple[str, ...]], None]


async def ask_all(
    writer: QuestionWriter,
    documents: Sequence[Document],
    per_document: int,
    concurrency: int,
    written: Written,
) -> None:
    """Tell `written` of each document as soon as its questions are there; at the first error, end.

    Raises as `QuestionWriter.write` and `written`.
    """
    waiting = iter(documents)

    async def ask() -> None:
        for document in waiting:
            written(document, await writer.write(document, per_document))

    tasks = [asyncio.create_task(ask()) for _ in range(min(concurrency, len(documents)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
