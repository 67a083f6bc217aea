"""The engine and the RAG service of `kvswarm ask`, and the questions put to them."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.client.client import StreamingClient
from loadgen.client.host import Host
from loadgen.client.label_probe import probe_rag
from loadgen.client.probe import HostFacts, probe
from loadgen.client.retrieval import RetrievalClient
from loadgen.client.settings import ClientSettings, auth_headers
from loadgen.errors import HostError, UsageError
from loadgen.launch.arguments import TargetArguments, target_names
from loadgen.launch.label_service import rag_service
from loadgen.launch.pipeline import AskPrinter, Pipeline
from loadgen.launch.target_run import choose_targets, target_settings
from loadgen.launch.terminal import awaited, say
from loadgen.runs.exit_code import DONE, FAILED
from loadgen.swarm.sending.labels import Labels
from loadgen.targets.catalog import TargetSpec
from loadgen.targets.demo_model import is_complete
from loadgen.targets.service_group import ServiceGroup
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget, check_target, start_target
from loadgen.targets.trained_model import TRAINED, is_made

DEATH_WAIT_S = 10.0
"""A service that broke off an answer may take so long until it is known to be dead."""


@dataclass(frozen=True, slots=True)
class AskArguments:
    """What is asked of whom; a service without an address is started."""

    questions: tuple[str, ...]
    host: str | None
    target: str
    target_arguments: TargetArguments
    rag_url: str | None
    corpus: Path | None
    endpoint: str
    output_tokens: int
    as_json: bool


class AskSession:
    """The engine and the RAG service, each found running or started for as long as the stack."""

    def __init__(self, arguments: AskArguments, logs: Path, stack: AsyncExitStack) -> None:
        self._arguments = arguments
        self._logs = logs
        self._stack = stack
        self._started: list[RunningTarget | ServiceGroup] = []
        self._body: Mapping[str, Any] = {}

    async def ask_all(self) -> int:
        """Ask one question after the other. Raises UsageError and TargetError."""
        arguments = self._arguments
        headers = auth_headers()
        # What is only asked comes first: a wrong address is told before anything is started.
        model = arguments.target_arguments.model
        facts = await probe(arguments.host, model, headers) if arguments.host else None
        rag_url = await self._rag_url()
        if facts is None:
            facts = await self._start_engine()
        if told := await _told_of_model(facts):
            say(f"model {facts.model} {told}")
        pipeline = await self._pipeline(facts, rag_url)
        printer = AskPrinter(arguments.as_json, len(arguments.questions) > 1)
        answered = [await self._ask(pipeline, printer, each) for each in arguments.questions]
        return DONE if all(answered) else FAILED

    async def _rag_url(self) -> str:
        arguments = self._arguments
        if arguments.rag_url:
            return await _running_rag_url(arguments.rag_url)
        if arguments.host is None:
            check_target(*self._target())
        start_timeout_s = arguments.target_arguments.start_timeout_s
        service = rag_service(arguments.corpus, self._logs, start_timeout_s)
        rag = await self._stack.enter_async_context(service)
        self._started.append(rag)
        return rag.url

    async def _start_engine(self) -> HostFacts:
        spec, settings = self._target()
        say(f"starting {spec.name} …")
        starting = awaited(start_target(spec, settings, self._logs), spec.name, self._logs)
        target = await self._stack.enter_async_context(starting)
        self._started.append(target)
        self._body = spec.body
        return await probe(target.url, target.model, auth_headers())

    def _target(self) -> tuple[TargetSpec, TargetSettings]:
        arguments = self._arguments.target_arguments
        names = target_names(self._arguments.target)
        if len(names) > 1:
            raise UsageError(f"`kvswarm ask` asks one target, not {len(names)}")
        (spec,) = choose_targets(names, arguments)
        # Processors round bfloat16 differently, and so small a model then says something else.
        return spec, replace(target_settings(arguments), is_exact=arguments.model == TRAINED)

    async def _pipeline(self, facts: HostFacts, rag_url: str) -> Pipeline:
        arguments = self._arguments
        settings = ClientSettings(
            url=facts.url,
            model=facts.model,
            endpoint="chat" if arguments.endpoint == "chat" else "completions",
            continuous_usage=facts.is_vllm,
            headers=auth_headers(),
            extra_body=self._body,
        )
        client = await self._stack.enter_async_context(StreamingClient(settings))
        retrieval = await self._stack.enter_async_context(RetrievalClient(rag_url))
        return Pipeline(retrieval, client, Labels(facts.is_vllm, {}), arguments.output_tokens)

    async def _ask(self, pipeline: Pipeline, printer: AskPrinter, question: str) -> bool:
        printer.begin(question)
        asked = await pipeline.ask(question, printer.found, printer.speak)
        printer.end(asked)
        if asked.outcome in ("connect_error", "truncated"):
            await self._tell_death()
        return asked.outcome == "ok"

    async def _tell_death(self) -> None:
        """Raise the TargetError of a service of ours, where one has died."""
        deaths = [asyncio.create_task(service.wait_died()) for service in self._started]
        if not deaths:
            return
        done, waiting = await asyncio.wait(
            deaths, timeout=DEATH_WAIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()
        for task in done:
            raise task.result()


async def _running_rag_url(url: str) -> str:
    try:
        return (await probe_rag(url, (), Path())).url
    except HostError as error:
        raise HostError(f"RAG service: {error}") from None


async def _told_of_model(facts: HostFacts) -> str:
    """What to expect of the answers, where a vLLM on this machine serves a model made by us."""
    if not facts.is_vllm:
        return ""
    async with Host.opened(facts.url, auth_headers(), timeout_s=10.0) as host:
        cards = (await host.ask("GET", "/v1/models")).json().get("data") or []
    roots = [card.get("root") for card in cards if card.get("id") == facts.model]
    folders = [Path(root) for root in roots if isinstance(root, str)]
    if any(map(is_complete, folders)):
        return "has random weights: its text is gibberish by design"
    return "is small: its answers are often wrong" if any(map(is_made, folders)) else ""
