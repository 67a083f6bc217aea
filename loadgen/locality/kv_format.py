"""In which blocks an engine keeps a KV cache, how many bytes a token takes, and by whose word."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.locality.measured import (
    DTYPE_BYTES,
    argv_bytes_per_token,
    kv_form,
    other_attention,
)
from loadgen.locality.trace_sources import USUAL_BLOCK_SIZE, recorded_run
from loadgen.runs.recorded import RecordedRun, argument
from loadgen.scratch import expanded
from loadgen.targets.catalog import find_target, load_catalog
from loadgen.targets.hardware import Platform, detect_platform
from loadgen.targets.plan import plan_services, port_names
from loadgen.targets.settings import CONFIG_JSON, TargetSettings, model_config

ENGINE = "vllm"


@dataclass(frozen=True, slots=True)
class ToldFigure:
    """A number, and who says so; None where nobody does."""

    value: int | None
    source: str


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """The engine that `kvswarm run --target vllm` would start here."""

    platform: Platform
    block_size: int
    argv: Sequence[str]

    @classmethod
    def of_this_machine(cls, model: Path) -> "PlannedEngine":
        """With this model, a folder or a config.json; any other stands for one of a name."""
        platform = detect_platform()
        spec = find_target(load_catalog(None), ENGINE)
        folder = (model.parent if model.is_file() else model).absolute()
        settings = TargetSettings(str(folder) if (folder / CONFIG_JSON).is_file() else "model")
        ports = dict.fromkeys(port_names(spec, settings, platform), 1)
        plans = plan_services(spec, settings, platform, ports)
        argv = next(plan.argv for plan in plans if plan.role == "engine")
        return cls(platform, spec.engine.block_size[platform], argv)

    @property
    def words(self) -> str:
        """How it is called in a table."""
        return f"{ENGINE} as this machine would start it ({self.platform})"

    def told_block_size(self) -> ToldFigure:
        """Of its cache."""
        return ToldFigure(self.block_size, self.words)

    def told_bytes(self, model: Path) -> ToldFigure:
        """Of a token, by the model's config.json; unknown where that has another attention."""
        found = argv_bytes_per_token(self.argv, model)
        return ToldFigure(found, f"{model}, {self.words}" if found else f"not told by {model}")


def model_path(model: str) -> Path:
    """The folder or config.json of a model: as given, or a name's in the hub's cache.

    Raises UsageError.
    """
    path = expanded(model)
    if path.is_file() or (path / CONFIG_JSON).is_file():
        return path
    from huggingface_hub import try_to_load_from_cache

    is_name = not path.exists() and not model.startswith((".", "/", "~")) and model.count("/") < 2
    with suppress(ValueError):  # what no model of the hub can be called
        cached = try_to_load_from_cache(model, CONFIG_JSON) if is_name and model else None
        if isinstance(cached, str):
            return Path(cached).parent
    raise UsageError(
        f"--model {model}: no config.json there, and no model of that name was loaded before:"
        " name its folder or its config.json"
    )


def odd_attention(run: RecordedRun) -> str | None:
    """What a run's model says of layers that do not attend to all tokens, and where; else None."""
    model = argument(run.engine_argv, "--model")
    for each in filter(None, (model, run.target.get("tokenizer") or run.options.get("tokenizer"))):
        with suppress(UsageError):
            found = other_attention(model_path(each), run.target.get("max_model_len"))
            if found is not None:
                return f"{found} (config.json of {each})"
    return None


def run_block_size(run: Path) -> ToldFigure:
    """Of the engine that a run loaded, else what is usual. Raises UsageError for no run."""
    told = recorded_run(run).target.get("block_size")
    if told:
        return ToldFigure(int(told), "the run's engine")
    return ToldFigure(USUAL_BLOCK_SIZE, "usual on a GPU, the run does not tell")


def run_told_bytes(run: Path, model: Path | None) -> ToldFigure:
    """Of a token in the engine that a run loaded, with another model where one is given."""
    argv = recorded_run(run).engine_argv
    named = argument(argv, "--model")
    model = Path(named) if model is None and named else model
    if model is None:
        return ToldFigure(None, "the run does not tell its model: give --model")
    found = argv_bytes_per_token(argv, model)
    return ToldFigure(found, f"{model} in the run's engine" if found else f"not told by {model}")


def weights_bytes(model: Path) -> int | None:
    """Of a model in memory: its files of weights, else by its config.json as a decoder with gated
    feed-forward layers; None where neither tells."""
    folder = model if model.is_dir() else model.parent
    for ending in ("*.safetensors", "*.bin"):
        sizes = {file.name: file.stat().st_size for file in folder.glob(ending)}
        parts = [size for name, size in sizes.items() if not name.startswith("consolidated")]
        if sizes:  # a folder may hold all of them once more in one file
            return sum(parts or sizes.values())
    try:
        return _weights_of(model_config(model))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _weights_of(config: Mapping[str, Any]) -> int | None:
    if any("expert" in name for name in config):
        return None
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads, head_dim, own = kv_form(config)
    attention = hidden * head_dim * 2 * (heads + kv_heads)
    layer = attention + 3 * hidden * config["intermediate_size"]
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return int((config["num_hidden_layers"] * layer + embeddings) * DTYPE_BYTES[own])
