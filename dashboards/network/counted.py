"""What is counted and not timed: keys that move, and what a full tier gives up."""

import math
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from dashboards.figures.style import finished, marked_line, new_axes, new_figure
from dashboards.network.pivot import bars, by_setting, need, three_digits
from dashboards.report.wording import listed
from dashboards.studies.answer import StudyAnswer, StudyPicture
from dashboards.studies.wording import count, percent, span
from kv_tiers.trials import NetworkFigures, placing

FIRST_TOLD = ("3 to 4", "6 to 7")
CHANCE_SIGMAS = 3.5
"""Of a node's keys by chance: within so many, the fullest node shows nothing but chance."""
LEAST_GAIN = 0.001
"""Of shares of computing: by less, two policies save the same."""


def placement_answer(rows: NetworkFigures) -> StudyAnswer:
    """Rendezvous hashing, modulo, and modulo without a hash."""
    grown = [each for each in rows.settings() if " to " in each]
    numbers = [int(each.split()[0]) for each in grown]
    said = [
        f"{percent(need(rows, 'rendezvous', each, 'moved_share'))} with rendezvous hashing and"
        f" {percent(need(rows, 'modulo', each, 'moved_share'))} with modulo from"
        f" {each.replace(' to ', ' nodes to ')}"
        for each in grown
        if each in FIRST_TOLD
    ]
    keys = need(rows, "modulo", f"{numbers[0]} nodes", "keys")
    first = f"Of {count(keys)} keys move {'; '.join(said)}."
    return StudyAnswer(
        "Which keys move when nodes are added, and does a prime number help?",
        (first, *_primes(rows, numbers, keys), *_unhashed(rows, numbers)),
        (
            by_setting(rows, "nodes, keys moved", grown, "moved_share", percent),
            by_setting(
                rows,
                "fullest over mean",
                [f"{n} nodes" for n in numbers],
                "fullest_to_mean",
                three_digits,
            ),
        ),
        (
            StudyPicture(
                "moved",
                _moved_picture(rows, numbers),
                "Share of keys that move, and the fullest node, against the number of nodes",
            ),
        ),
    )


def _primes(rows: NetworkFigures, numbers: Sequence[int], keys: float) -> Iterator[str]:
    kinds = {
        "prime": [n for n in numbers if n in placing.PRIMES],
        "composite": [n for n in numbers if n not in placing.PRIMES],
    }
    if not all(kinds.values()):
        return
    for name in ("rendezvous", "modulo"):
        fullest = {
            kind: rows.each([f"{n} nodes" for n in own], name, "fullest_to_mean")
            for kind, own in kinds.items()
        }
        by_chance = all(
            need(rows, name, f"{n} nodes", "fullest_to_mean") - 1
            <= CHANCE_SIGMAS * math.sqrt((n - 1) / keys)
            for n in numbers
        )
        ending = "no more than by chance, prime or not" if by_chance else "more than by chance"
        prime, composite = (span(each, three_digits) for each in fullest.values())
        yield (
            f"With `{name}` the fullest node has {prime} times the mean at prime numbers and"
            f" {composite} at composite ones: {ending}."
        )
    off = [
        abs(need(rows, "modulo", f"{n} to {n + 1}", "moved_share") - n / (n + 1)) for n in numbers
    ]
    if max(off) < 0.01:
        yield (
            "Modulo moves N in N + 1 of the keys from N nodes on, prime or not; rendezvous hashing"
            " what the new node takes over."
        )


def _unhashed(rows: NetworkFigures, numbers: Sequence[int]) -> Iterator[str]:
    used = {n: rows.value(placing.UNHASHED, f"{n} nodes", "used_nodes") for n in numbers}
    idle = [f"{count(some)} of {n}" for n, some in used.items() if some is not None and some < n]
    if idle:
        yield (
            f"Primes are for keys that are not hashed: offsets of chunks of {placing.CHUNK_TOKENS}"
            f" tokens, modulo the number of nodes, use {listed(idle)} nodes."
        )


def _moved_picture(rows: NetworkFigures, numbers: Sequence[int]) -> Figure:
    figure = new_figure(9.0, 3.6)
    for place, (measure, title, form) in enumerate(
        (
            ("moved_share", "keys moved, %, by one node more", "{0} to {1}"),
            ("fullest_to_mean", "fullest node over the mean", "{0} nodes"),
        ),
        1,
    ):
        axes = new_axes(figure, title, "nodes", "", (1, 2, place))
        for at, name in enumerate(rows.subjects()):
            scale = 100 if measure == "moved_share" else 1
            points = [
                (n, scale * need(rows, name, form.format(n, n + 1), measure)) for n in numbers
            ]
            marked_line(axes, points, at, name)
    return finished(figure)


def eviction_answer(rows: NetworkFigures) -> StudyAnswer:
    """Policies by the computing that hits save."""
    settings, names = rows.settings(), rows.subjects()
    mean = {name: _mean(rows.each(settings, name, "saved_share")) for name in names}
    best, least = max(mean, key=mean.__getitem__), min(mean, key=mean.__getitem__)
    beside = "" if least == "lru" else f" `lru` {percent(mean['lru'])},"
    first = (
        f"`{best}` saves most computing: {percent(mean[best])} on average over"
        f" {len(settings)} settings,{beside} and `{least}` least,"
        f" {percent(mean[least])}."
    )
    traces = [*dict.fromkeys(each.rpartition(",")[0] for each in settings)]
    bullets = []
    for trace in traces:
        own = [each for each in settings if each.startswith(trace)]
        saved = {name: _mean(rows.each(own, name, "saved_share")) for name in names}
        held = {name: _mean(rows.each(own, name, "byte_hit_share")) for name in names}
        top, full = max(saved, key=saved.__getitem__), max(held, key=held.__getitem__)
        bullets.append(
            f"On {trace} `{top}` saves most, {percent(saved[top])}, against"
            f" {percent(saved['lru'])} with `lru`; most bytes are found with `{full}`,"
            f" {percent(held[full])}."
        )
    return StudyAnswer(
        "What should a full tier give up?",
        (first, *bullets, *_by_cost(rows, settings)),
        (
            by_setting(rows, "computing saved", settings, "saved_share", percent),
            by_setting(rows, "bytes found", settings, "byte_hit_share", percent),
        ),
        (
            StudyPicture(
                "eviction",
                bars(rows, settings, "saved_share", "computing saved, %", 100),
                "Computing that a tier's hits save, by trace, capacity and policy",
            ),
        ),
    )


def _by_cost(rows: NetworkFigures, settings: Sequence[str]) -> Iterator[str]:
    cost, lru = (
        [need(rows, name, each, "saved_share") for each in settings] for name in ("cost", "lru")
    )
    more = sum(own > other + LEAST_GAIN for own, other in zip(cost, lru, strict=True))
    fewer = sum(own < other - LEAST_GAIN for own, other in zip(cost, lru, strict=True))
    yield (
        f"Beside `lru`, `cost` saves more in {more} of {len(settings)} settings and less in"
        f" {fewer}."
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
