"""Finds the context of a request whose question comes without one."""

from dataclasses import dataclass
from typing import Self

from loadgen.client.retrieval import RetrievalClient
from loadgen.context import Request
from loadgen.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class FoundContext:
    """A question behind a context, `context_id`, and the label that it is sent with; both are None
    where nothing was found."""

    prompt: str
    context_id: str | None
    label: str | None
    retrieval_ms: float


class Retriever:
    """Asks the RAG service, and puts a share of wrong contexts in place of what it found."""

    def __init__(self, client: RetrievalClient, workload: Workload, wrong_share: float) -> None:
        self._client = client
        self._workload = workload
        self._wrong_share = wrong_share

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    async def find(self, request: Request) -> FoundContext:
        """The context of the request's question. Raises StreamFailure."""
        found = await self._client.retrieve(request.question)
        context_id = self._workload.mistake(request, self._wrong_share) or found.doc_id
        prompt = self._workload.prompt_behind(context_id, found.text, request.question)
        return FoundContext(prompt, context_id, context_id, found.retrieval_ms)


class Labeller(Retriever):
    """Asks for the label alone: the question stays behind its own context."""

    async def find(self, request: Request) -> FoundContext:
        """The label of the request's question. Raises StreamFailure."""
        found = await self._client.retrieve(request.question)
        return FoundContext(request.prompt, request.context_id, found.doc_id, found.retrieval_ms)
