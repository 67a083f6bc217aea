"""The options that say which library is meant and how it is searched."""

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rag_store.chunking import Chunker
from rag_store.cli.output import fitted
from rag_store.cli.suggestion import suggested
from rag_store.embedders import KINDS, EmbedderSpec
from rag_store.errors import RagUsageError
from rag_store.reranker import RerankerSpec
from rag_store.settings import RETRIEVERS, Settings

_SETTINGS, _EMBEDDER, _CHUNKER, _RERANKER = Settings(), EmbedderSpec(), Chunker(), RerankerSpec()
_KEY = "environment variable with the server's key"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line. The options of the library are always there."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"kvswarm rag {command}",
            description=description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )

    def format_help(self) -> str:
        return fitted(super().format_help(), sys.stdout)

    def error(self, message: str) -> NoReturn:
        said = suggested(message, self._option_string_actions)
        raise RagUsageError(said if said != message else f"{message}: see `{self.prog} --help`")


def number(kind: type[int] | type[float], low: int, high: int) -> Callable[[str], float]:
    """The type of an option that takes a number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(low - 1)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: give a number from {low} to {high}")
        return value

    return parse


def add_option(
    to: argparse._ActionsContainer, name: str, default: object, text: str, **more: Any
) -> None:
    """An option whose values are of the type of its default, unless `more` names a type."""
    given: dict[str, Any] = {"default": default, "type": type(default), "help": text, **more}
    to.add_argument(name, **given)


def add_library_options(parser: argparse.ArgumentParser) -> None:
    """Where the library lies, how it was made, how it is searched."""
    store = parser.add_argument_group("the library")
    add_option(store, "--path", _SETTINGS.path, "its folder")
    add_option(store, "--collection", _SETTINGS.collection, "one of several in it")
    add_option(store, "--chroma-url", "", "a Chroma server that holds the chunks instead")
    _add_embedder_options(parser.add_argument_group("how chunks become vectors"))
    _add_search_options(parser.add_argument_group("how it is searched"))
    _add_reranker_options(parser.add_argument_group("who reads what was found"))


def _add_embedder_options(to: argparse._ArgumentGroup) -> None:
    cut = "where the hf kinds cut a text off"
    repeated = "what a chunk repeats of the one before"
    dim, tokens = number(int, 1, 16_384), number(int, 1, 1_000_000)
    add_option(to, "--embedder", _EMBEDDER.kind, "which kind", choices=KINDS)
    add_option(to, "--embedder-model", "", "folder or name; hf kinds and openai")
    add_option(to, "--embedder-url", "", "the server of openai")
    add_option(to, "--embedder-key-env", _EMBEDDER.api_key_env, _KEY)
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
    add_option(to, "--reranker-key-env", _RERANKER.api_key_env, _KEY)
    add_option(to, "--rerank", _RERANKER.documents, "documents it puts in order")
    add_option(to, "--rerank-chunks", _RERANKER.chunks, "chunks of each document that it reads")


def settings_of(parsed: argparse.Namespace) -> Settings:
    """The settings the options say. Raises RagUsageError."""
    try:
        chunker = Chunker(parsed.chunk_tokens, parsed.overlap_tokens)
    except ValueError as error:
        raise RagUsageError(f"--chunk-tokens and --overlap-tokens: {error}") from error
    return Settings(
        path=parsed.path,
        chroma_url=parsed.chroma_url,
        collection=parsed.collection,
        embedder=EmbedderSpec(
            parsed.embedder,
            parsed.embedder_model,
            parsed.embedder_url,
            parsed.embedder_key_env,
            parsed.embedder_dim,
            parsed.embedder_max_tokens,
        ),
        chunker=chunker,
        retriever=parsed.retriever,
        candidates=parsed.candidates,
        exact_chunks=parsed.exact_chunks,
        threads=parsed.threads,
        max_query_chars=parsed.max_query_chars,
        kept_queries=parsed.kept_queries,
        reranker=RerankerSpec(
            parsed.reranker_url,
            parsed.reranker_model,
            parsed.reranker_key_env,
            parsed.rerank,
            parsed.rerank_chunks,
        ),
    )
