"""What real nodes and sockets did: a death, clients on one link, loads through it, regions."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from dashboards.figures.style import SERIES_COLOURS, finished, marked_line, new_axes, new_figure
from dashboards.network.pivot import PivotColumn, Write, bars, need, pivot, rows_of, three_digits
from dashboards.report.wording import listed
from dashboards.studies.answer import StudyAnswer, StudyPicture
from dashboards.studies.wording import count, duration, percent, seconds, span, times
from kv_tiers.link.rate import BYTES_PER_MBIT
from kv_tiers.trials import NetworkFigures, loading, node_death, regions, sharing
from loadgen.locality.break_even import Computing

FAIR = 0.5
"""Of an even share: a scheduler that leaves a heavy client less starves it."""


def death_answer(rows: NetworkFigures) -> StudyAnswer:
    """Prefixes kept, repaired and moved, by placement of chunks and copies."""
    settings = (
        node_death.KILLED,
        node_death.FIRST_PASS,
        node_death.SECOND_PASS,
        node_death.ADDING,
        node_death.ADDED,
    )
    columns: list[PivotColumn] = [
        *((each, each, "prefix_share", percent) for each in settings),
        ("computed again", node_death.FIRST_PASS, "computed_chunks", count),
        ("copies repaired", node_death.FIRST_PASS, "repaired_copies", count),
        ("copies moved", node_death.ADDING, "moved_copies", count),
    ]
    picture = bars(rows, settings[:3], "prefix_share", "prefixes found, %", 100)
    about = "Share of prefixes found after a node was killed, by placement and copies"
    return StudyAnswer(
        "What is left when a node dies?",
        (*_death_sentences(rows),),
        (pivot(rows, "chunks, copies", columns),),
        (StudyPicture("death", picture, about),),
    )


def _death_sentences(rows: NetworkFigures) -> Iterator[str]:
    def alone(run: int, setting: str, measure: str = "prefix_share") -> float:
        return need(rows, node_death.subject_of(run, copies=1), setting, measure)

    two = [each for each in rows.subjects() if each.endswith("2 copies")]
    kept = rows_of(rows, two, node_death.KILLED, "prefix_share")
    yield (
        f"When one of {node_death.NODES} nodes is killed, chunks that are each placed alone keep"
        f" {percent(alone(1, node_death.KILLED))} of their prefixes with one copy, whole"
        f" contexts on a node {percent(alone(0, node_death.KILLED))}, and two copies"
        f" {span(kept, percent)}, however they are placed."
    )
    repaired = rows_of(rows, two, node_death.FIRST_PASS, "repaired_copies")
    computed = rows_of(rows, two, node_death.FIRST_PASS, "computed_chunks")
    yield (
        f"Once the node is back, empty, reading with two copies computes {span(computed, count)}"
        f" chunks again and writes {span(repaired, count)} missing copies. With one copy"
        f" {count(alone(1, node_death.FIRST_PASS, 'computed_chunks'))} chunks are computed"
        f" where each lies alone, {count(alone(0, node_death.FIRST_PASS, 'computed_chunks'))}"
        " where contexts are whole."
    )
    second = rows_of(rows, rows.subjects(), node_death.SECOND_PASS, "prefix_share")
    yield f"The second pass finds {span(second, percent)} of the prefixes."
    adding = rows_of(rows, rows.subjects(), node_death.ADDING, "prefix_share")
    yield f"While a fourth node is added, readers find {span(adding, percent)} of them."


def link_answer(rows: NetworkFigures) -> StudyAnswer:
    """Schedulers by a light client's p99, of those that starve nobody."""
    measures: tuple[tuple[str, str, Write], ...] = (
        ("light p50", "light_p50_ms", duration),
        ("light p99", "light_p99_ms", duration),
        ("heavy p50", "heavy_p50_ms", duration),
        ("heavy p99", "heavy_p99_ms", duration),
        ("Jain's index", "jain", three_digits),
        ("used", "utilisation", percent),
    )
    kinds = [each for each in (sharing.COUNTED, sharing.SOCKET) if each in rows.settings()]
    tables = [
        pivot(rows, each, [(title, each, measure, write) for title, measure, write in measures])
        for each in kinds
    ]
    shares = pivot(rows, "scheduler", [(sharing.STREAM, sharing.STREAM, "fair_share", percent)])
    picture = bars(rows, kinds, "light_p99_ms", "p99 of a light client, ms", 1)
    about = "p99 of a light client beside heavy ones, by scheduler"
    return StudyAnswer(
        "Which scheduler shares a scarce link best?",
        (*_link_sentences(rows, kinds[-1]),),
        (*tables, shares),
        (StudyPicture("link", picture, about),),
    )


def _link_sentences(rows: NetworkFigures, timed: str) -> Iterator[str]:
    names = [name for name in rows.subjects() if rows.value(name, timed, "jain") is not None]
    p99 = {name: need(rows, name, timed, "light_p99_ms") for name in names}
    fair = {name: need(rows, name, sharing.STREAM, "fair_share") for name in names}
    best = min((name for name in names if fair[name] >= FAIR), key=lambda name: p99[name])
    yield (
        f"`{best}` is best: beside heavy clients a light one has a p99 of {duration(p99[best])},"
        f" with `fifo` of {duration(p99['fifo'])}, and a heavy one beside many light ones keeps"
        f" {percent(fair[best])} of an even share."
    )
    for name in (each for each in names if fair[each] < FAIR):
        yield (
            f"`{name}` starves: a heavy client beside many light ones has {percent(fair[name])} of"
            f" an even share. Its light client's p99 is {duration(p99[name])}."
        )
    yield from _lottery(rows, p99, best)
    jain = rows_of(rows, names, timed, "jain")
    used = rows_of(rows, names, timed, "utilisation")
    yield (
        f"Jain's index is {span(jain, three_digits)}, highest with"
        f" `{names[jain.index(max(jain))]}`; the link is used {span(used, percent)} of the time."
    )


def _lottery(rows: NetworkFigures, p99: dict[str, float], best: str) -> Iterator[str]:
    drawn = {
        int(each.split()[0]): need(rows, "lottery", each, "drawn_ratio")
        for each in rows.settings()
        if each.endswith(" heavy")
    }
    if len(drawn) > 1 and best != "lottery":
        (few, most), (many, least) = min(drawn.items()), max(drawn.items())
        yield (
            f"What is wrong with the lottery: its weights differ at most e-fold. A client with next"
            f" to nothing is drawn {most:.2f} times as often as {few} heavy one, and only"
            f" {least:.2f} times as often as each of {many}. So its p99 of"
            f" {duration(p99['lottery'])} is {times(p99['lottery'] / p99[best])} that of `{best}`,"
            " and nothing bounds it."
        )


def loading_answer(rows: NetworkFigures) -> StudyAnswer:
    """Codecs by the bandwidth from which on they pay."""
    names = [name for name in rows.subjects() if name != loading.COMPUTING]
    settings = [each for each in rows.settings() if each.endswith("Mbit/s")]
    columns: list[PivotColumn] = [
        ("bytes a token", loading.ALONE, "bytes_per_token", count),
        ("decoding", loading.ALONE, "decode_s", seconds),
        *((each, each, "loaded_s", seconds) for each in settings),
    ]
    about = "Seconds to load the prompt against the link's rate, by codec, and to compute it"
    return StudyAnswer(
        "From which bandwidth on is loading faster than computing?",
        (*_loading_sentences(rows, names, settings),),
        (pivot(rows, "codec", columns),),
        (StudyPicture("loading", _loading_picture(rows, names, settings), about),),
    )


def _loading_sentences(
    rows: NetworkFigures, names: Sequence[str], settings: Sequence[str]
) -> Iterator[str]:
    tokens, rate = _computing(rows)
    found = {name: crossing_mbit(rows, name, tokens / rate) for name in names}
    able = {name: at for name, at in found.items() if at is not None}
    told = (
        f"A prompt of {count(tokens)} tokens, computed at {count(rate)} a second in"
        f" {seconds(tokens / rate)},"
    )
    if able:
        best = min(able, key=able.__getitem__)
        raw = f", and as it is from {_mbit(able['raw'])}" if "raw" in able and best != "raw" else ""
        yield f"{told} is loaded sooner from {_mbit(able[best])} on with `{best}`{raw}."
    else:
        yield f"{told} is loaded sooner with no codec at any of the rates measured."
    predicted = {name: predicted_mbit(rows, name) for name in names}
    pairs = (f"`{name}` {_mbit(predicted[name])} and {_mbit(found[name])}" for name in names)
    yield (
        "Predicted from bytes and the rate of computing, and measured, at the lowest rate or"
        f" between two of them: {', '.join(pairs)}."
    )
    if never := [f"`{name}`" for name in names if predicted[name] is None]:
        yield (
            f"Decoding alone takes longer here than computing with {listed(never)}: no link is fast"
            " enough."
        )
    yield _off(rows, names, settings)


def regions_answer(rows: NetworkFigures) -> StudyAnswer:
    """What a regional store saves and keeps, and for how long its region is stale."""
    stores, ways = (
        NetworkFigures(tuple(row for row in rows.rows if row.subject in those))
        for those in (regions.STORES, regions.WAYS)
    )
    settings = regions.WRITING, regions.FIRST, regions.AGAIN
    lost = regions.CENTRE_LOST, regions.REGION_LOST
    columns: list[PivotColumn] = [
        *((each, each, "chunk_ms", duration) for each in settings),
        *((f"found, {each}", each, "hit_share", percent) for each in lost),
    ]
    late: list[PivotColumn] = [
        (title, regions.DELETED, measure, seconds)
        for title, measure in (("longest", "longest_s"), ("mean", "mean_s"), ("apart", "apart_s"))
    ]
    picture = bars(stores, settings, "chunk_ms", "a chunk, ms", 1)
    about = "Time to write, read and read again a chunk, by store"
    return StudyAnswer(
        "What does a store near the engine save, and how stale is it?",
        (*_regions_sentences(rows),),
        (pivot(stores, "store", columns), pivot(ways, "synchronised by", late)),
        (StudyPicture("regions", picture, about),),
    )


def _regions_sentences(rows: NetworkFigures) -> Iterator[str]:
    def took(store: str, setting: str) -> str:
        return duration(need(rows, store, setting, "chunk_ms"))

    def stale(way: str, measure: str = "longest_s") -> str:
        return seconds(need(rows, way, regions.DELETED, measure))

    def sent(store: str) -> str:
        return count(need(rows, store, regions.AGAIN, "link_bytes"))

    def kept(lost: str) -> str:
        return percent(need(rows, regions.REGIONAL, lost, "hit_share"))

    yield (
        f"A regional store reads a chunk again in {took(regions.REGIONAL, regions.AGAIN)}, the"
        f" centre alone in {took(regions.CENTRAL, regions.AGAIN)}. A deletion elsewhere is known"
        f" after {stale(regions.ROUNDS)} at most with rounds of the centre every"
        f" {stale(regions.ROUNDS, 'period_s')}, and after up to {stale(regions.EXCHANGES)} with"
        " exchanges of each region."
    )
    yield (
        f"Of two regions only one knows for up to {stale(regions.EXCHANGES, 'apart_s')} with"
        f" exchanges, {stale(regions.PULLS, 'apart_s')} with pulls and"
        f" {stale(regions.ROUNDS, 'apart_s')} with rounds. Pulls alone take up to"
        f" {stale(regions.PULLS)}, as long as all others get their writes through at once."
    )
    yield (
        f"Asking the centre first makes it {took(regions.LATEST, regions.AGAIN)} a chunk, with"
        f" {sent(regions.LATEST)} bytes over the link instead of {sent(regions.CENTRAL)}."
    )
    yield (
        f"A write returns after {took(regions.REGIONAL, regions.WRITING)}, at the centre alone"
        f" after {took(regions.CENTRAL, regions.WRITING)}."
    )
    yield (
        f"Without the centre the region still finds {kept(regions.CENTRE_LOST)} of the chunks that"
        f" it has read, and without its own store {kept(regions.REGION_LOST)} of those at the"
        " centre."
    )


def _computing(rows: NetworkFigures) -> tuple[float, float]:
    """Tokens of the prompt, and how many a second are computed."""
    alone = (loading.COMPUTING, loading.ALONE)
    return need(rows, *alone, "tokens"), need(rows, *alone, "tokens_per_s")


def predicted_mbit(rows: NetworkFigures, name: str) -> float | None:
    """From bytes and the rate of computing; None where decoding alone takes longer."""
    tokens, rate = _computing(rows)
    if need(rows, name, loading.ALONE, "decode_s") >= tokens / rate:
        return None
    each_bytes = need(rows, name, loading.ALONE, "bytes_per_token")
    return Computing(each_bytes, rate).break_even_bytes_per_s / BYTES_PER_MBIT


def crossing_mbit(rows: NetworkFigures, name: str, computed_s: float) -> float | None:
    """The rate at which loading takes as long as computing, between two rates that were measured,
    straight in their logarithms; the lowest rate where it is faster there already."""
    measured = [
        (float(each.split()[0]), need(rows, name, each, "loaded_s"))
        for each in rows.settings()
        if each.endswith("Mbit/s") and rows.value(name, each, "loaded_s") is not None
    ]
    if measured and measured[0][1] <= computed_s:
        return measured[0][0]
    for (slow, longer_s), (fast, shorter_s) in pairwise(measured):
        if shorter_s <= computed_s < longer_s:
            part = math.log(longer_s / computed_s) / math.log(longer_s / shorter_s)
            return float(slow * (fast / slow) ** part)
    return None


def _off(rows: NetworkFigures, names: Sequence[str], settings: Sequence[str]) -> str:
    """How far loads were from what bytes, rate and decoding say."""
    tokens, chunks = (
        need(rows, loading.COMPUTING, loading.ALONE, name) for name in ("tokens", "chunks")
    )
    ratios = []
    for name in names:
        decode_s = need(rows, name, loading.ALONE, "decode_s")
        size = tokens * need(rows, name, loading.ALONE, "bytes_per_token")
        for each in settings:
            sent_s = size / (float(each.split()[0]) * BYTES_PER_MBIT)
            wanted_s = max(sent_s, decode_s) + decode_s / chunks
            ratios.append(need(rows, name, each, "loaded_s") / wanted_s)
    return (
        f"Loads took {span(ratios, times)} what the link and decoding, one beside the other, say."
    )


def _loading_picture(rows: NetworkFigures, names: Sequence[str], settings: Sequence[str]) -> Figure:
    tokens, rate = _computing(rows)
    figure = new_figure(8.0, 4.2)
    axes = new_axes(figure, "seconds to have the prompt's KV", "link, Mbit/s")
    for at, name in enumerate(names):
        loads = [(float(each.split()[0]), need(rows, name, each, "loaded_s")) for each in settings]
        marked_line(axes, loads, at, name)
    axes.axhline(tokens / rate, linestyle="--", color=SERIES_COLOURS[-1], label="computed")
    axes.set_xscale("log")
    axes.set_yscale("log")
    return finished(figure)


def _mbit(rate: float | None) -> str:
    return "never" if rate is None else f"{rate:,.3g} Mbit/s"
