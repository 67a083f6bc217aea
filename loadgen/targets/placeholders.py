"""`{name}` in a catalog's command lines. Any other brace, as in JSON, stays as it is."""

import re
from collections.abc import Iterable, Mapping

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)?)\}")
KNOWN = (
    "python",
    "model",
    "served_model_name",
    "host",
    "max_model_len",
    "block_size",
    "blocks",
    "l1_gb",
    "context_scheduler",
    "scratch_dir",
)


def is_port(name: str) -> bool:
    """Whether the placeholder stands for a port: `port`, `x_port` or `service.x_port`."""
    last = name.rpartition(".")[2]
    return last == "port" or last.endswith("_port")


def unknown(text: str) -> str | None:
    """The first placeholder in `text` that means nothing."""
    names = PLACEHOLDER.findall(text)
    return next((name for name in names if name not in KNOWN and not is_port(name)), None)


def ports_in(texts: Iterable[str], service: str) -> set[str]:
    """The ports a service's texts name, each as `service.port`."""
    names = {name for text in texts for name in PLACEHOLDER.findall(text) if is_port(name)}
    return {name if "." in name else f"{service}.{name}" for name in names}


def fill(text: str, service: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders replaced; KeyError names one that has no value."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return values[f"{service}.{name}" if is_port(name) and "." not in name else name]

    return PLACEHOLDER.sub(value, text)
