"""Whether KV behind a link is loaded sooner than it is computed again.

Loading n tokens takes `latency + n * bytes_per_token / bytes_per_s`, computing them
`n / tokens_per_s`. A link pays at some length where its bandwidth is above
`bytes_per_token * tokens_per_s`, the break-even bandwidth, and then from
`latency / (1 / tokens_per_s - bytes_per_token / bytes_per_s)` tokens on. What both need, such as
computing the question, changes neither.
"""

import re
from dataclasses import dataclass

from loadgen.errors import UsageError

MOST = 1e12
"""Bytes or tokens, of one or in a second, of whatever is set against each other here."""
_RATE = re.compile(r"(\d+\.?\d*|\.\d+)\s*([kMGT]?)(B/s|bit/s|bps|b/s)")
_LATENCY = re.compile(r"(\d+\.?\d*|\.\d+)\s*(us|µs|ms|s)")
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between an engine and a tier: bytes a second, and seconds until the first."""

    name: str
    bytes_per_s: float
    latency_s: float = 0.0

    @classmethod
    def parse(cls, text: str, option: str = "--link") -> "Link":
        """`25GB/s`, `100Gbit/s`, `nvme=7GB/s`, `lan=1.2GB/s,0.2ms`. Raises UsageError."""
        name, _, figures = text.rpartition("=")
        rate, comma, latency = figures.partition(",")
        found = _RATE.fullmatch(rate.strip())
        waits = _LATENCY.fullmatch(latency.strip()) if comma else None
        if found is None or (comma and waits is None):
            raise UsageError(
                f"{option} {text!r} is no link: write NAME=RATE,LATENCY, as nvme=7GB/s,0.1ms or"
                " 100Gbit/s"
            )
        bits = 1.0 if found[3] == "B/s" else 8.0
        bytes_per_s = float(found[1]) * _SCALES[found[2]] / bits
        latency_s = float(waits[1]) * _SECONDS[waits[2]] if waits else 0.0
        if not 1 <= bytes_per_s <= MOST * 1000 or latency_s > MOST:
            raise UsageError(
                f"{option} {text!r}: give a rate from 1 B/s to {MOST / 1e9:g} TB/s, and a"
                " latency that somebody waits"
            )
        return cls(name.strip() or rate.strip(), bytes_per_s, latency_s)


def check_bytes_per_token(given: int | None) -> None:
    """Raise UsageError for what no token of KV has."""
    if given is not None and not 1 <= given <= MOST:
        raise UsageError(f"--bytes-per-token {str(given)[:20]}: give a number from 1 to {MOST:g}")


USUAL_LINKS = (
    Link("memory, PCIe 5.0 x16", 50e9, 2e-5),
    Link("memory, PCIe 4.0 x16", 25e9, 2e-5),
    Link("100 Gbit/s network", 12.5e9, 5e-5),
    Link("NVMe SSD, PCIe 4.0 x4", 7e9, 1e-4),
    Link("25 Gbit/s network", 3.125e9, 1e-4),
    Link("10 Gbit/s network", 1.25e9, 2e-4),
    Link("1 Gbit/s network", 0.125e9, 2e-4),
)
"""What such links carry at best; a real one, and the code at both its ends, carries less."""


@dataclass(frozen=True, slots=True)
class Computing:
    """What a token of KV is to a model on an engine: its bytes, and how many are computed a
    second."""

    bytes_per_token: float
    tokens_per_s: float

    @property
    def break_even_bytes_per_s(self) -> float:
        """A link with less is slower than computing, whatever the length."""
        return self.bytes_per_token * self.tokens_per_s

    def computed_s(self, tokens: float) -> float:
        """To compute so many tokens."""
        return tokens / self.tokens_per_s

    def loaded_s(self, link: Link, tokens: float) -> float:
        """To load so many tokens over a link."""
        return link.latency_s + tokens * self.bytes_per_token / link.bytes_per_s

    def pays_from_tokens(self, link: Link) -> float | None:
        """The length from which loading is the sooner; None where it never is."""
        saved_s = 1 / self.tokens_per_s - self.bytes_per_token / link.bytes_per_s
        return link.latency_s / saved_s if saved_s > 0 else None
