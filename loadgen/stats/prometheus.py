"""A fast reader of the few metrics wanted from a page in the Prometheus text format."""

import re
from collections.abc import Iterable
from typing import NamedTuple, Self

_LABELS = rb'\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\}'
_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_SERIES = re.compile(rb"([A-Za-z_:][\w:]*)(?:" + _LABELS + rb")?")


MOST_VALUE = 1e18
"""From here on what a page tells is no count, and a sum of some may be no number."""


class Sample(NamedTuple):
    """One line: a metric's name, its labels and its value (may be NaN, infinite or too large)."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def is_known(self) -> bool:
        """Whether its value is a number, and a possible one."""
        return abs(self.value) < MOST_VALUE


class MetricSeries(NamedTuple):
    """Samples of one metric that carry these labels at least, as `name{label="value"}` says."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what names no series."""
        match = _SERIES.fullmatch(text.encode())
        if match is None:
            raise ValueError(f'{text!r} is no series: write name or name{{label="value"}}')
        return cls(match[1].decode(), tuple(_labels(match[2] or b"").items()))

    def among(self, samples: Iterable[Sample]) -> list[Sample]:
        """Those of these samples that it names."""
        return [
            sample
            for sample in samples
            if sample.name == self.name
            and all(sample.labels.get(name) == value for name, value in self.labels)
        ]


class MetricReader:
    """Finds the samples of exactly the names given, as the page spells them.

    A counter's name ends in `_total` there; `*_created` lines have names of their own and are
    left out. What is not a well-formed sample of a wanted name is skipped without parsing.
    """

    def __init__(self, names: Iterable[str]) -> None:
        wanted = b"|".join(re.escape(name.encode()) for name in names)
        self._line = re.compile(
            rb"^[ \t]*(" + wanted + rb")[ \t]*(?:" + _LABELS + rb"[ \t]*|[ \t])([^\s#]+)",
            re.MULTILINE,
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
    return {
        name: _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
        for name, value in pairs
    }
