"""Latency against the length of context and question."""

from collections.abc import Iterator

from dashboards.figures.line_fit import LineFit, fit_line
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cells
from dashboards.studies.pictures import Cloud, clouds
from dashboards.studies.requests import Requests
from dashboards.studies.table import LATENCY, REUSED, cell_table
from dashboards.studies.targets import NO_REUSE, PLAIN
from dashboards.studies.wording import crowd, duration

INTERVALS = (
    "The intervals here come from the single requests of all runs together, as if none had waited"
    " for another: they do not know how much runs differ."
)
COMPUTED, CACHED = "computed", "prefix from the cache"


def by_length(cells: Cells) -> Answer:
    """How much each further token costs, computed and from the cache."""
    panels: dict[str, list[Cloud]] = {}
    sentences: list[str] = []
    for users in cells.values("users"):
        found = list(_clouds(cells.where(users=users).sound))
        panels[crowd(users)] = found
        sentences.append(_growth(crowd(users), found))
    picture = Picture(
        "length",
        clouds(panels, "prompt (context and question), tokens", "time to first token, ms"),
        "time to first token of each request against its prompt's length",
    )
    columns = (*LATENCY, "e2e_p50_ms", *REUSED)
    return Answer(
        "How does latency grow with the length of context and question?",
        (*sentences, INTERVALS),
        (cell_table(cells, ("target", "users"), columns),),
        (picture,),
    )


def _clouds(cells: Cells) -> Iterator[Cloud]:
    """Prompts of an engine without a prefix cache, and those that another one found in it."""
    for name, target in ((COMPUTED, NO_REUSE), (CACHED, PLAIN)):
        parts = [Requests.read(cell.run) for cell in cells.where(target=target)]
        if parts:
            requests = Requests.joined(parts)
            kept = requests.is_hit if name == CACHED else ~requests.is_hit
            x, y = requests.prompt_tokens[kept], requests.ttft_ms[kept]
            yield Cloud(name, x, y, fit_line(x, y))


def _growth(who: str, found: list[Cloud]) -> str:
    fits = {cloud.name: cloud.fit for cloud in found}
    computed, cached = fits.get(COMPUTED), fits.get(CACHED)
    if computed is None:
        return f"With {who}: too few requests of different lengths to tell."
    if computed.low <= 0:
        return (
            f"With {who} there is no evidence that the time to first token grows with the prompt"
            f" ({_per_thousand(computed)} for 1,000 tokens)."
        )
    text = (
        f"With {who}, each further 1,000 prompt tokens add {_per_thousand(computed)} to the time to"
        " first token where they are computed"
    )
    if cached is None:
        return f"{text}; too few prompts were found in a cache to say the same of those."
    if cached.low <= 0 and cached.high < computed.low:
        return (
            f"{text}; there is no evidence that they add any where the prefix comes from the cache"
            f" ({_per_thousand(cached)})."
        )
    if cached.high < computed.low:
        return f"{text}, and {_per_thousand(cached)} where the prefix comes from the cache."
    return (
        f"{text}; there is no evidence that they add less where the prefix comes from the cache"
        f" ({_per_thousand(cached)})."
    )


def _per_thousand(fit: LineFit) -> str:
    middle, low, high = (duration(1000 * each) for each in (fit.slope, fit.low, fit.high))
    return f"{middle} ({low} to {high})"
