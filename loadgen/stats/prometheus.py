"""A fast reader of the few metrics wanted from a page in the Prometheus text format."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_LABELS = rb'\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\}'
_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One line: a metric's name, its labels and its value (may be NaN or infinite)."""

    name: str
    labels: dict[str, str]
    value: float


class MetricReader:
    """Finds the samples of exactly the names given, as the page spells them.

    A counter's name ends in `_total` there; `*_created` lines have names of their own and are
    left out. What is not a well-formed sample of a wanted name is skipped without parsing.
    """

    def __init__(self, names: Iterable[str]) -> None:
        wanted = b"|".join(re.escape(name.encode()) for name in names)
        self._line = re.compile(
            rb"^(" + wanted + rb")[ \t]*(?:" + _LABELS + rb")?[ \t]+([^\s#]+)", re.MULTILINE
        )

    def read(self, page: bytes) -> list[Sample]:
        """The wanted samples of `page` in its order; any bytes are accepted."""
        samples = []
        for name, labels, text in self._line.findall(page):
            try:
                value = float(text)
            except ValueError:
                continue
            samples.append(Sample(name.decode(), _labels(labels), value))
        return samples


def _labels(raw: bytes) -> dict[str, str]:
    pairs = _LABEL.findall(raw.decode("utf-8", "replace"))
    return {name: _ESCAPE.sub(_unescape, value) for name, value in pairs}


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
