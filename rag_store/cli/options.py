"""The options that say which library is meant and how it is searched."""

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, NoReturn

from rag_store.cli.output import fitted
from rag_store.cli.suggestion import suggested
from rag_store.documents import Chunker
from rag_store.embedders import KINDS, EmbedderSpec
from rag_store.errors import RagUsageError
from rag_store.reranker import RerankerSpec
from rag_store.settings import RETRIEVERS, Settings

_SETTINGS, _EMBEDDER, _CHUNKER, _RERANKER = Settings(), EmbedderSpec(), Chunker(), RerankerSpec()


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line. The options of the library are always there, last."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"kvswarm rag {command}",
            description=description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )

    def read(self, arguments: list[str]) -> tuple[argparse.Namespace, Settings]:
        """What is typed, and the library that it means. Raises RagUsageError."""
        store = self.add_argument_group("the library")
        add_option(store, "--path", _SETTINGS.path, "its folder")
        add_option(store, "--collection", _SETTINGS.collection, "one of several in it")
        add_option(store, "--chroma-url", "", "a Chroma server that holds the chunks instead")
        _add_embedder_options(self.add_argument_group("how chunks become vectors"))
        _add_search_options(self.add_argument_group("how it is searched"))
        _add_reranker_options(self.add_argument_group("who reads what was found"))
        parsed = self.parse_args(arguments)
        return parsed, _settings_of(parsed)

    def format_help(self) -> str:
        return fitted(super().format_help(), sys.stdout)

    def error(self, message: str) -> NoReturn:
        said = suggested(message, self._option_string_actions)
        raise RagUsageError(said if said != message else f"{message}: see `{self.prog} --help`")


def number(kind: type[int] | type[float], low: int, high: int) -> Callable[[str], float]:
    """The type of an option that takes a number from `low` to `high`."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from {low} to {high}")

    return parse


def add_option(
    to: argparse._ActionsContainer, name: str, default: object, text: str, **more: Any
) -> None:
    """An option whose values are of the type of its default, unless `more` names a type."""
    given: dict[str, Any] = {"default": default, "type": type(default), "help": text, **more}
    to.add_argument(name, **given)


def _add_embedder_options(to: argparse._ArgumentGroup) -> None:
    cut = "where the hf kinds cut a text off"
    repeated = "what a chunk repeats of the one before"
    dim, tokens = number(int, 1, 16_384), number(int, 1, 1_000_000)
    add_option(to, "--embedder", _EMBEDDER.kind, "which kind", choices=KINDS, dest="embedder_kind")
    add_option(to, "--embedder-model", "", "folder or name; hf kinds and openai")
    add_option(to, "--embedder-url", "", "the server of openai")
    _add_key_option(to, "embedder", _EMBEDDER.api_key_env)
    add_option(to, "--embedder-dim", _EMBEDDER.dim, "dimensions of hashing", type=dim)
    add_option(to, "--embedder-max-tokens", _EMBEDDER.max_tokens, cut, type=tokens)
    add_option(to, "--chunk-tokens", _CHUNKER.size_tokens, "size of a chunk")
    add_option(to, "--overlap-tokens", _CHUNKER.overlap_tokens, repeated)


def _add_search_options(to: argparse._ArgumentGroup) -> None:
    asked = "with more chunks and questions than this Chroma's HNSW index is asked"
    kept = "so many are not embedded again when they are repeated"
    add_option(to, "--retriever", _SETTINGS.retriever, "vectors, words, both", choices=RETRIEVERS)
    add_option(to, "--candidates", _SETTINGS.candidates, "documents in an answer")
    add_option(to, "--exact-chunks", _SETTINGS.exact_chunks, asked)
    add_option(to, "--threads", _SETTINGS.threads, "that search")
    add_option(to, "--max-query-chars", _SETTINGS.max_query_chars, "longer queries are refused")
    add_option(to, "--kept-queries", _SETTINGS.kept_queries, kept)


def _add_reranker_options(to: argparse._ArgumentGroup) -> None:
    add_option(to, "--reranker-url", "", "a server with /v1/rerank, as vLLM's; none: nobody")
    add_option(to, "--reranker-model", "", "the model's name there")
    _add_key_option(to, "reranker", _RERANKER.api_key_env)
    first, read = "documents it puts in order", "chunks of each document that it reads"
    add_option(to, "--rerank", _RERANKER.documents, first, dest="reranker_documents", metavar="N")
    add_option(to, "--rerank-chunks", _RERANKER.chunks, read, dest="reranker_chunks", metavar="N")


def _add_key_option(to: argparse._ArgumentGroup, server: str, variable: str) -> None:
    told, dest = "environment variable with the server's key", f"{server}_api_key_env"
    add_option(to, f"--{server}-key-env", variable, told, dest=dest, metavar="NAME")


def _settings_of(parsed: argparse.Namespace) -> Settings:
    own = {each.name for each in fields(Settings)} & vars(parsed).keys()
    return Settings(
        **{name: getattr(parsed, name) for name in own},
        embedder=EmbedderSpec(**_given(parsed, "embedder_")),
        chunker=Chunker(parsed.chunk_tokens, parsed.overlap_tokens),
        reranker=RerankerSpec(**_given(parsed, "reranker_")),
    )


def _given(parsed: argparse.Namespace, prefix: str) -> dict[str, Any]:
    values = vars(parsed).items()
    return {name.removeprefix(prefix): each for name, each in values if name.startswith(prefix)}
