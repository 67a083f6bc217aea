"""`kvswarm rag`: a program of its own, found by name, which nothing here imports."""

import importlib
from itertools import pairwise

from loadgen.launch.arguments import needs

PROGRAM = "rag_store.cli.main"
MODEL, OF_HUGGING_FACE = "--embedder-model", {"--embedder=hf-encoder", "--embedder=hf-causal-mean"}


def rag_command(arguments: list[str]) -> int:
    """Run it with its own errors and exit codes. Raises UsageError where it is not installed."""
    with needs("rag", "`kvswarm rag`"):  # commands too are imported when they are asked for
        return int(importlib.import_module(PROGRAM).main(with_folder(arguments)))


def with_folder(arguments: list[str]) -> list[str]:
    """With the folder of the trained model for its name, which the program by itself does not know.
    Raises UsageError where it cannot be made."""
    if OF_HUGGING_FACE.isdisjoint([*arguments, *map("=".join, pairwise(arguments))]):
        return arguments
    from loadgen.launch.target_run import model_named

    words = [""]
    for each in arguments:
        words += each.split("=", 1) if each.startswith(f"{MODEL}=") else [each]
    pairs = pairwise(words)
    return [str(model_named(each)) if before == MODEL else each for before, each in pairs]
