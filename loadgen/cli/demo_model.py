"""The demo model: built once, from the texts of the demo corpus."""

from pathlib import Path

from loadgen.targets.demo_model import Size, build_model, default_model_dir, is_complete
from loadgen.workload.corpus import load_corpus


def build_demo_model(directory: Path, size: Size) -> Path:
    """Make the model; raises UsageError where it cannot be made."""
    texts = [document.text for document in load_corpus().documents]
    return build_model(directory, size, texts)


def demo_model(size: Size) -> Path:
    """The demo model in its usual place, made now if it is not there."""
    directory = default_model_dir(size)
    return directory if is_complete(directory) else build_demo_model(directory, size)
