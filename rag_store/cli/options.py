"""The options that say which library is meant and how it is searched."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rag_store.chunking import Chunker
from rag_store.cli.output import fitted
from rag_store.cli.suggestion import suggested
from rag_store.embedders import KINDS, EmbedderSpec
from rag_store.errors import RagUsageError
from rag_store.reranker import RerankerSpec
from rag_store.settings import RETRIEVERS, Settings

_SETTINGS, _EMBEDDER, _CHUNKER, _RERANKER = Settings(), EmbedderSpec(), Chunker(), RerankerSpec()


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


def add_library_options(parser: argparse.ArgumentParser) -> None:
    """Where the library lies, how it was made, how it is searched."""
    store = parser.add_argument_group("the library")
    store.add_argument("--path", type=Path, default=_SETTINGS.path, help="its folder")
    store.add_argument("--collection", default=_SETTINGS.collection, help="one of several in it")
    store.add_argument(
        "--chroma-url", default="", help="a Chroma server that holds the chunks instead"
    )
    _add_embedder_options(parser.add_argument_group("how chunks become vectors"))
    _add_search_options(parser.add_argument_group("how it is searched"))
    _add_reranker_options(parser.add_argument_group("who reads what was found"))


def _add_embedder_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--embedder", choices=KINDS, default=_EMBEDDER.kind, help="which kind")
    group.add_argument("--embedder-model", default="", help="folder or name; hf kinds and openai")
    group.add_argument("--embedder-url", default="", help="the server of openai")
    group.add_argument(
        "--embedder-key-env",
        default=_EMBEDDER.api_key_env,
        help="environment variable with the server's key",
    )
    group.add_argument(
        "--embedder-dim",
        type=number(int, 1, 16_384),
        default=_EMBEDDER.dim,
        help="dimensions of hashing",
    )
    group.add_argument(
        "--embedder-max-tokens",
        type=number(int, 1, 1_000_000),
        default=_EMBEDDER.max_tokens,
        help="where the hf kinds cut a text off",
    )
    group.add_argument(
        "--chunk-tokens", type=int, default=_CHUNKER.size_tokens, help="size of a chunk"
    )
    group.add_argument(
        "--overlap-tokens",
        type=int,
        default=_CHUNKER.overlap_tokens,
        help="what a chunk repeats of the one before",
    )


def _add_search_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--retriever", choices=RETRIEVERS, default=_SETTINGS.retriever, help="vectors, words, both"
    )
    group.add_argument(
        "--candidates", type=int, default=_SETTINGS.candidates, help="documents in an answer"
    )
    group.add_argument(
        "--exact-chunks",
        type=int,
        default=_SETTINGS.exact_chunks,
        help="with more chunks and questions than this Chroma's HNSW index is asked",
    )
    group.add_argument("--threads", type=int, default=_SETTINGS.threads, help="that search")
    group.add_argument(
        "--max-query-chars",
        type=int,
        default=_SETTINGS.max_query_chars,
        help="longer queries are refused",
    )
    group.add_argument(
        "--kept-queries",
        type=int,
        default=_SETTINGS.kept_queries,
        help="so many are not embedded again when they are repeated",
    )


def _add_reranker_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--reranker-url", default="", help="a server with /v1/rerank, as vLLM's; none: nobody"
    )
    group.add_argument("--reranker-model", default="", help="the model's name there")
    group.add_argument(
        "--reranker-key-env",
        default=_RERANKER.api_key_env,
        help="environment variable with the server's key",
    )
    group.add_argument(
        "--rerank", type=int, default=_RERANKER.documents, help="documents it puts in order"
    )
    group.add_argument(
        "--rerank-chunks",
        type=int,
        default=_RERANKER.chunks,
        help="chunks of each document that it reads",
    )


def settings_of(parsed: argparse.Namespace) -> Settings:
    """The settings the options say. Raises RagUsageError."""
    try:
        chunker = Chunker(parsed.chunk_tokens, parsed.overlap_tokens)
    except ValueError as error:
        raise RagUsageError(f"--chunk-tokens and --overlap-tokens: {error}") from error
    embedder = EmbedderSpec(
        parsed.embedder,
        parsed.embedder_model,
        parsed.embedder_url,
        parsed.embedder_key_env,
        parsed.embedder_dim,
        parsed.embedder_max_tokens,
    )
    return Settings(
        parsed.path,
        parsed.chroma_url,
        parsed.collection,
        embedder,
        chunker,
        parsed.retriever,
        parsed.candidates,
        parsed.exact_chunks,
        parsed.threads,
        parsed.max_query_chars,
        parsed.kept_queries,
        RerankerSpec(
            parsed.reranker_url,
            parsed.reranker_model,
            parsed.reranker_key_env,
            parsed.rerank,
            parsed.rerank_chunks,
        ),
    )
