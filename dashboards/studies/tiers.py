"""Where KV lives: tiers behind the engine's cache at equal bytes, and controls without a gain."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dashboards.report.wording import listed
from dashboards.studies.answer import (
    NOT_MEASURED,
    MarkdownTable,
    StudyAnswer,
    StudyPicture,
    cell_table,
)
from dashboards.studies.cell import COMPUTED, FIRST, NATIVE, OFFLOAD, P50, PLAIN, SAME, Cells
from dashboards.studies.contrast import MEAN, Contrasts, contrast
from dashboards.studies.pictures import COST_PANELS, Bar, Line, against, bars, cost_panels, line_of
from dashboards.studies.study import StudyQuestion
from dashboards.studies.tier_arms import (
    BACKED,
    CACHED,
    EXTERNAL,
    KINDS,
    LOADED,
    STORED,
    TIERED,
    Arm,
    arms,
    bytes_per_token,
    size_of,
    small_and_large,
)
from dashboards.studies.tier_hits import FROM_FILES, hit, predicted
from dashboards.studies.tier_ledger import LMCACHE
from dashboards.studies.wording import NO_FINDING, count, memory, percent
from loadgen.locality.lmcache_replay import TRIGGER
from loadgen.targets.plan import BYTES_PER_GB

TOKEN = "tpot_ms.mean"
SIDES = "without a tier, mean TTFT", "with it, mean TTFT"
COLUMNS = (P50, FIRST, COMPUTED, CACHED, EXTERNAL, FROM_FILES, STORED, LOADED)


def pays(
    cells: Cells,
    name: str = "pays",
    question: str = "Does a tier behind a cache that is too small pay, and which?",
) -> StudyAnswer:
    """Each tier against the engine alone, and against the same bytes of the other kind."""
    small, large = small_and_large(cells)
    if not small or not large:
        return StudyAnswer(question, (NOT_MEASURED,))
    found = Contrasts(
        "behind it",
        tuple((arm.name, contrast(small, arm.cells, SIDES)) for arm in arms(cells)),
    )
    size = count(float(small.values("kv_tokens")[0]))
    said = found.said("With a tier behind that cache")
    none = Arm("no tier", small)
    rows = [none, *arms(cells), Arm("all in the engine's cache", large)]
    picture = StudyPicture(
        name,
        bars(COST_PANELS, [Bar(each.name, each.cells, each is none) for each in rows]),
        "computed prompt tokens and time to first token without a tier and with each",
    )
    return StudyAnswer(
        question,
        (
            *_share_saved(small, cells, large),
            *_computed(size, small, cells, large),
            said,
            *_against(cells),
            *_never_freed(cells, large),
            OWN_MEDIANS,
        ),
        (found.table, cell_table(cells, ("target", "kv_tokens", "l1_gb"), COLUMNS)),
        (picture,),
    )


OWN_MEDIANS = "Tokens of a row of the table are medians of their own, so that they do not add up."


def _share_saved(small: Cells, cells: Cells, large: Cells) -> Iterator[str]:
    """Of what the small cache computes again, the share that each tier saves, the most first."""
    alone, least = small.middle(COMPUTED), large.middle(COMPUTED)
    if alone is None or least is None or alone <= least:
        return
    by_share: dict[str, list[str]] = {}
    known = [(arm.cells.middle(COMPUTED), arm.name) for arm in arms(cells)]
    for tokens, name in sorted((tokens, name) for tokens, name in known if tokens is not None):
        share = percent(min(max((alone - tokens) / (alone - least), 0), 1))
        by_share.setdefault(share, []).append(name)
    told = [f"{share} with {listed(names)}" for share, names in by_share.items()]
    if told:
        yield (
            "Of the prompt tokens that are computed only because the cache is too small, a tier"
            f" saves {'; '.join(told)}."
        )


def _computed(size: str, small: Cells, cells: Cells, large: Cells) -> Iterator[str]:
    """By the engine's own counts, which need no interval."""
    alone, least = small.middle(COMPUTED), large.middle(COMPUTED)
    told = [said for target, name in KINDS.items() if (said := _by_size(cells, target, name))]
    if alone is not None and least is not None:
        yield (
            f"Behind a cache of {size} tokens a run computes {count(alone)} prompt tokens without"
            f" a tier; {'; '.join(told)}; {count(least)} with all in the engine's cache."
        )


def _by_size(cells: Cells, target: str, name: str) -> str:
    """`34,840 and 17,072 with 30 MB and 60 MB of vLLM's own`."""
    found = cells.where(target=target).middles("l1_gb", COMPUTED)
    sizes = [size_of(size) for size in found]
    return (
        f"{listed([*map(count, found.values())])} with {listed(sizes)} of {name}" if found else ""
    )


def _against(cells: Cells) -> Iterator[str]:
    """vLLM's own tier against LMCache's of the same size."""
    names = "LMCache, mean TTFT", "vLLM's own, mean TTFT"
    other = dict(cells.where(target=OFFLOAD).by("l1_gb"))
    both = [
        (size_of(size), contrast(other[size], part, names))
        for size, part in cells.where(target=NATIVE).by("l1_gb")
        if size in other
    ]
    if both:
        yield Contrasts("each", tuple(both)).said("With vLLM's own tier instead of LMCache's")


def _never_freed(cells: Cells, large: Cells) -> Iterator[str]:
    """LMCache's memories that had no room for a prompt more, and gave nothing up for it."""
    least = large.by_repeat(COMPUTED)
    filled = {
        f"{size_of(size)} of {KINDS[target]}": max(taken)
        for target in LMCACHE
        for size, part in cells.where(target=target).by("l1_gb")
        if (taken := _taken(part, size)) and max(taken) < TRIGGER and not _as_few(part, least)
    }
    if filled:
        yield (
            f"LMCache gives memory up only where {percent(TRIGGER)} of it is taken. With"
            f" {listed([*filled])} at most {percent(max(filled.values()))} was, with no room for"
            " the next prompt: what was stored first stayed, and nothing more was stored, in what"
            " lies behind it neither. A memory of many prompts does not stop there."
        )


def _taken(part: Cells, l1_gb: str) -> list[float]:
    """The largest share of LMCache's memory in each run; none where one does not tell it, or gave
    some up."""
    if any(cell.figure("lmcache_l1_evicted_chunks") for cell in part.counted):
        return []
    peaks = [cell.figure("peak_lmcache_l1_bytes") for cell in part.counted]
    known = [peak for peak in peaks if peak is not None]
    return [peak / (BYTES_PER_GB * float(l1_gb)) for peak in known] if known == peaks else []


def enough(cells: Cells) -> StudyAnswer:
    """The smallest tier of each kind that computes no more than the engine with room for all."""
    question = "How much of it is enough?"
    small, large = small_and_large(cells)
    if not small or not large:
        return StudyAnswer(question, (NOT_MEASURED,))
    least = large.by_repeat(COMPUTED)
    sentences = []
    for target, said in KINDS.items():
        sizes = [
            float(size)
            for size, part in cells.where(target=target).by("l1_gb")
            if _as_few(part, least)
        ]
        tried = [float(each) for each in cells.where(target=target).values("l1_gb")]
        if sizes:
            rest = ", which take the rest," if target in (TIERED, *BACKED) else ""
            sentences.append(
                f"{size_of(min(sizes))} of {said}{rest} are enough: no more is computed than with"
                " everything in the engine's cache."
            )
        elif len(tried) > 1:
            sentences.append(f"No size of {said} that was tried is, up to {size_of(max(tried))}.")
        elif tried:
            sentences.append(f"{size_of(tried[0])} of {said}, all that was tried, are not.")

    def lines(figure: str) -> list[Line]:
        return [
            line_of(said, part, "l1_gb", figure)
            for target, said in KINDS.items()
            if len(part := cells.where(target=target)) and len(part.values("l1_gb")) > 1
        ]

    panels = cost_panels(COMPUTED, "prompt tokens in a run", lines)
    picture = StudyPicture(
        "enough",
        against(panels, "memory of the tier, GB"),
        "computed prompt tokens and time to first token against the memory of the tier",
    )
    return StudyAnswer(question, (*sentences, *_working_set(cells)), (), (picture,))


def _as_few(part: Cells, least: dict[int, float]) -> bool:
    """In every repeat, of which there is one."""
    computed = part.by_repeat(COMPUTED)
    both = computed.keys() & least.keys()
    return bool(both) and all(computed[each] <= SAME * least[each] for each in both)


def _working_set(cells: Cells) -> Iterator[str]:
    """What vLLM stored where the tier was largest."""
    sizes = cells.where(target=NATIVE).by("l1_gb")
    stored = sizes[-1][1].middle(STORED) if sizes else None
    each = bytes_per_token(cells)
    least = small_and_large(cells)[1].by_repeat(COMPUTED)
    if stored is not None and each is not None and _as_few(sizes[-1][1], least):
        yield (
            f"A token of KV takes {count(each)} bytes here; {memory(stored)} were stored in a run"
            " where everything found room."
        )


def controls(cells: Cells) -> StudyAnswer:
    """Where no tier can save: without reuse, and where the engine's cache holds everything.

    Nothing is counted twice: tokens of each pair of runs, and of an arm, over its repeats, the time
    to first token and that of a further one.
    """
    sentences, tables = list[str](), list[MarkdownTable]()
    gains: dict[str, list[bool]] = {COMPUTED: [], MEAN: [], TOKEN: []}
    longer: list[bool] = []
    for part, said in CONTROLS.items():
        own = cells.of(part)
        alone = own.where(target=PLAIN)
        if not len(alone):
            continue
        least = alone.by_repeat(COMPUTED)
        saved = {arm.name: [*_saved(arm.cells, least)] for arm in arms(own)}
        gains[COMPUTED] += [each for repeats in saved.values() for each in repeats]
        for metric in (TOKEN, MEAN):
            found = [(arm.name, contrast(alone, arm.cells, SIDES, metric)) for arm in arms(own)]
            known = (each.verdict for _, each in found)
            gains[metric] += [each == "better" for each in known if each in DECIDED]
        longer += [each.verdict == "worse" for _, each in found if each.verdict in DECIDED]
        contrasts = Contrasts("behind it", tuple(found))
        sentences.append(contrasts.said(said))
        sentences.append(f"{said}, {_saving(saved)}.")
        tables.append(contrasts.table)
    first = (
        f"{_false_gains(*gains.values())} A cost in time to first token is seen in {sum(longer)} of"
        f" {len(longer)}."
    )
    return StudyAnswer(
        "Is a gain seen where there can be none?", (first, *sentences, NO_FINDING), tuple(tables)
    )


def _saving(saved: Mapping[str, Sequence[bool]]) -> str:
    """With which arms fewer tokens were computed, in how many repeats."""
    if not any(saved.values()):
        return "tokens were not counted"
    fewer = [
        f"{name} ({sum(repeats)} of {len(repeats)} runs)"
        for name, repeats in saved.items()
        if any(repeats)
    ]
    return f"fewer tokens are computed with {listed(fewer)}" if fewer else "no tier saves a token"


def _false_gains(tokens: list[bool], first: list[bool], later: list[bool]) -> str:
    made, gains = len(tokens + first + later), sum(tokens + first + later)
    held = "within" if made >= LEAST_MADE else "of too few to hold against"
    return (
        f"In {made} comparisons in which no tier can be worth anything, a gain is seen in {gains},"
        f" {held if gains <= MOST_FALSE * made else 'more than'} the {100 * MOST_FALSE:g} % that"
        f" may be false: fewer tokens in {sum(tokens)} of {len(tokens)} pairs of runs, and over all"
        f" repeats less time to first token in {sum(first)} of {len(first)} and for a further token"
        f" in {sum(later)} of {len(later)}."
    )


DECIDED = ("better", "worse", "no evidence")
MOST_FALSE, LEAST_MADE = 0.05, 40
"""Of gains in controls, and the comparisons that tell it."""


def _saved(part: Cells, least: dict[int, float]) -> Iterator[bool]:
    """Of each repeat that both have whether fewer tokens were computed with the tier."""
    computed = part.by_repeat(COMPUTED)
    yield from (SAME * computed[each] < least[each] for each in computed.keys() & least.keys())


CONTROLS = {
    "fits": "Where the engine's cache holds everything",
    "unique": "Where no context comes again",
}

LONG = "And for a few long prompts that are sent again and again?"
QUESTIONS = (
    StudyQuestion("pays", ("equal",), pays),
    StudyQuestion("enough", ("equal",), enough),
    StudyQuestion("long", ("long",), partial(pays, name="long", question=LONG)),
    StudyQuestion("hit", ("equal",), hit),
    StudyQuestion("predicted", ("equal",), predicted),
    StudyQuestion("controls", ("fits", "unique"), controls),
)
