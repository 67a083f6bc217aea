"""A library that is there already, for commands that only ask."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from rag_store.errors import RagUsageError
from rag_store.library import Library, open_library
from rag_store.settings import Settings


@asynccontextmanager
async def filled_library(settings: Settings) -> AsyncIterator[Library]:
    """As `open_library`, but one that is not there is not made.

    Raises RagUsageError too where it is not there, or holds no document.
    """
    async with open_library(replace(settings, create=False)) as library:
        if not library.doc_ids:
            raise RagUsageError(
                f"the collection {settings.collection!r} in {settings.place} holds no document:"
                " fill it with kvswarm rag index, or name another with --collection"
            )
        yield library
