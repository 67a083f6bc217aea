"""What comes when, of streamed KV: chunks in levels, and parts of a chunk in several orders."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from dashboards.network.pivot import bars, by_setting, need
from dashboards.report.wording import listed
from dashboards.studies.answer import StudyAnswer, StudyPicture
from dashboards.studies.wording import count, percent, seconds, span, times
from kv_tiers.store.adaptive import ADAPTIVE, LEVELS
from kv_tiers.trials import NetworkFigures, streaming

EVEN = 0.99
"""Of the second fastest order's time: who needs more has not won."""
MEASURES = {"first_s": "the first quarter", "mean_s": "the mean token", "all_s": "all tokens"}


def levels_answer(rows: NetworkFigures) -> StudyAnswer:
    """Chunks in levels against one codec for all, with a deadline."""
    settings, subjects = _links(rows), rows.subjects()
    finest, coarsest = LEVELS[0], LEVELS[-1]
    deadline_s = need(rows, ADAPTIVE, streaming.ALONE, "deadline_s")
    came = {name: fmean(rows.each(settings, name, "came")) for name in subjects}
    exact = fmean(rows.each(settings, ADAPTIVE, finest))
    first = (
        f"By a deadline of {seconds(deadline_s)}, in which all could be computed, `{ADAPTIVE}`"
        f" brings {percent(came[ADAPTIVE])} of the chunks on average over {len(settings)} links,"
        f" {percent(exact)} as they were; `{coarsest}` brings {percent(came[coarsest])}, none as it"
        f" was, and `{finest}` {percent(came[finest])}."
    )
    own, other = (rows.each(settings, name, "ttft_s") for name in (ADAPTIVE, coarsest))
    ratios = [one / two for one, two in zip(own, other, strict=True)]
    told = f"With the rest computed, the first token takes {span(ratios, times)} as long as with"
    bullets = [f"{told} `{coarsest}`: time that is left goes into finer chunks."]
    bullets += _slower_than_computing(rows, settings, deadline_s)
    return StudyAnswer(
        "What do chunks in several levels bring before a deadline?",
        (first, *bullets),
        (
            by_setting(rows, "first token", settings, "ttft_s", seconds),
            by_setting(rows, "chunks that came", settings, "came", percent),
            by_setting(rows, "as they were", settings, finest, percent),
        ),
        (
            StudyPicture(
                "levels",
                bars(rows, settings, "came", "chunks by the deadline, %", 100),
                "Chunks that came by the deadline, by link and codec",
            ),
        ),
    )


def _slower_than_computing(
    rows: NetworkFigures, settings: Sequence[str], deadline_s: float
) -> Iterator[str]:
    """Of each subject over which links; links over which all are need no loads."""
    slower = {
        name: [each for each in settings if need(rows, name, each, "ttft_s") > deadline_s]
        for name in rows.subjects()
    }
    told = [f"`{name}` over {listed(over)}" for name, over in slower.items() if over]
    if told:
        yield f"Computing all is faster than {'; than '.join(told)}."
    if every := [each for each in settings if all(each in over for over in slower.values())]:
        yield (
            f"Over {listed(every)} it is faster than any of them: there lookups should find"
            " nothing, which `recompute_chunks_per_s` is for."
        )


def parts_answer(rows: NetworkFigures) -> StudyAnswer:
    """Orders of anchors and deltas against whole groups: which wins where."""
    settings = _links(rows)
    anchors, apart, frame = (
        need(rows, streaming.WHOLE, streaming.ALONE, name)
        for name in ("anchor_share", "bytes_per_token", "frame_bytes_per_token")
    )
    return StudyAnswer(
        "Do anchors and deltas that travel apart come to use sooner?",
        (
            f"{_winners(rows, settings)}.",
            f"Where decoding takes no time, {_winners(rows, settings, 'link_')}.",
            f"Anchors are {percent(anchors)} of the bytes. In parts a token takes {count(apart)}"
            f" bytes, in one frame {count(frame)}.",
            "Engines take whole chunks: no order has one there more than"
            f" {percent(_soonest_gain(rows, settings))} sooner than `{streaming.WHOLE}`, and no"
            " store here keeps parts.",
        ),
        tuple(
            by_setting(rows, f"{told}, usable after", settings, measure, seconds)
            for measure, told in MEASURES.items()
        ),
        (
            StudyPicture(
                "parts",
                bars(rows, settings, "mean_s", "mean token usable, s", 1),
                "When the mean token is usable, by link and order of parts",
            ),
        ),
    )


def _winners(rows: NetworkFigures, settings: Sequence[str], prefix: str = "") -> str:
    """Of each order where it is faster than all others."""
    said = []
    for order in streaming.ORDERS:
        others = [each for each in streaming.ORDERS if each != order]
        won = []
        for measure, told in MEASURES.items():
            where = [
                each
                for each in settings
                if need(rows, order, each, prefix + measure)
                < EVEN * min(need(rows, name, each, prefix + measure) for name in others)
            ]
            every = f"all {len(settings)} links" if len(where) == len(settings) else listed(where)
            won += [f"for {told} over {every}"] if where else []
        said.append(f"`{order}` wins {', and '.join(won) or 'nowhere'}")
    return "; ".join(said)


def _soonest_gain(rows: NetworkFigures, settings: Sequence[str]) -> float:
    """The largest share of the time until all tokens are usable that an order saves."""
    gains = [
        1 - need(rows, order, each, "all_s") / need(rows, streaming.WHOLE, each, "all_s")
        for order in streaming.ORDERS
        for each in settings
    ]
    return max(gains)


def _links(rows: NetworkFigures) -> list[str]:
    return [each for each in rows.settings() if each != streaming.ALONE]
