"""Where KV lives: tiers behind the engine's cache at equal bytes, and controls without a gain."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dashboards.report.wording import listed
from dashboards.studies.answer import MarkdownTable, StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import COMPUTED, FIRST, OFFLOAD, PLAIN, SAME, Cells
from dashboards.studies.contrast import Contrasts, contrast
from dashboards.studies.pictures import Bar, Line, against, bars, cost_panels, line_of
from dashboards.studies.study import StudyQuestion
from dashboards.studies.task1.caches import HitPrediction, hit_table, most_off
from dashboards.studies.wording import count, duration, memory, percent
from loadgen.locality.curve import predict
from loadgen.locality.lmcache_replay import LmcacheReplay, LmcacheTier, ServedAt
from loadgen.locality.measured import run_bytes_per_token
from loadgen.locality.trace_sources import recorded_run, sent_requests, trace_of_run
from loadgen.runs.recorded import argument
from loadgen.targets.plan import BYTES_PER_GB

NATIVE, TIERED, FILES = "vllm-offload", "vllm-tiered", "vllm-lmcache-files"
NODE = "vllm-lmcache-codec"
KINDS = {
    NATIVE: "vLLM's own",
    TIERED: "vLLM's own and files",
    OFFLOAD: "LMCache's",
    FILES: "LMCache's and files",
    NODE: "LMCache's and valkey",
}
"""Tiers by the target that has them."""
LMCACHE = (OFFLOAD, FILES, NODE)
BACKED = (FILES, NODE)
"""LMCache's with a tier behind its memory that has no bound."""
MEAN = "ttft_ms.mean"
P50 = "ttft_p50_ms"
TOKEN = "tpot_ms.mean"
CACHED = "cached_prompt_tokens"
EXTERNAL, DISK = "external_prompt_tokens", "disk_prompt_tokens"
STORED, LOADED = "offload_stored_bytes", "offload_loaded_bytes"
NOT_MEASURED = ("Not measured.",)
COLUMNS = (P50, FIRST, COMPUTED, CACHED, EXTERNAL, DISK, STORED, LOADED)


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs of one target with one size of a tier; `name` as it stands in a sentence."""

    name: str
    cells: Cells


def size_of(l1_gb: str | float) -> str:
    """Of so much `--l1-gb`, in bytes."""
    return memory(BYTES_PER_GB * float(l1_gb))


def arms(cells: Cells) -> list[Arm]:
    """Every tier of every size, in the order of `KINDS`."""
    return [
        Arm(f"{size_of(size)} of {said}", part)
        for target, said in KINDS.items()
        for size, part in cells.where(target=target).by("l1_gb")
        if len(part)
    ]


def small_and_large(cells: Cells) -> tuple[Cells, Cells]:
    """The engine alone, with the cache that tiers lie behind and with the largest; none of what was
    not measured."""
    alone = cells.where(target=PLAIN)
    behind = [size for arm in arms(cells) for size in arm.cells.values("kv_tokens")]
    larger = [
        each for each in alone.values("kv_tokens") if behind and float(each) > float(behind[0])
    ]
    small, large = (
        alone.where(kv_tokens=each[-1]) if each else Cells(()) for each in (behind, larger)
    )
    return small, large


def pays(
    cells: Cells,
    name: str = "pays",
    question: str = "Does a tier behind a cache that is too small pay, and which?",
) -> StudyAnswer:
    """Each tier against the engine alone, and against the same bytes of the other kind."""
    small, large = small_and_large(cells)
    if not small or not large:
        return StudyAnswer(question, NOT_MEASURED)
    names = "without a tier, mean TTFT", "with it, mean TTFT"
    found = Contrasts(
        "behind it",
        tuple((arm.name, contrast(small, arm.cells, names, MEAN)) for arm in arms(cells)),
    )
    size = count(float(small.values("kv_tokens")[0]))
    said = found.said("With a tier behind that cache")
    none, figures = Arm("no tier", small), (COMPUTED, FIRST)
    rows = [none, *arms(cells), Arm("all in the engine's cache", large)]
    picture = StudyPicture(
        name,
        bars(
            (("Computed", "prompt tokens in a run"), ("Time to first token", "mean, ms")),
            [
                Bar(each.name, tuple(map(each.cells.figures, figures)), each is none)
                for each in rows
            ],
        ),
        "computed prompt tokens and time to first token without a tier and with each",
    )
    return StudyAnswer(
        question,
        (*_computed(size, small, cells, large), said, *_against(cells), OWN_MEDIANS),
        (found.table, cell_table(cells, ("target", "kv_tokens", "l1_gb"), COLUMNS)),
        (picture,),
    )


OWN_MEDIANS = (
    "Each figure of the table is a median of its own, so that tokens of a row do not add up."
)


def _computed(size: str, small: Cells, cells: Cells, large: Cells) -> Iterator[str]:
    """By the engine's own counts, which need no interval."""
    alone, least = small.median(COMPUTED), large.median(COMPUTED)
    told = [said for target, name in KINDS.items() if (said := _by_size(cells, target, name))]
    if alone is not None and least is not None:
        yield (
            f"Behind a cache of {size} tokens a run computes {count(alone)} prompt tokens without"
            f" a tier; {'; '.join(told)}; {count(least)} with all in the engine's cache."
        )


def _by_size(cells: Cells, target: str, name: str) -> str:
    """`34,840 and 17,072 with 30 MB and 60 MB of vLLM's own`."""
    found = cells.where(target=target).medians("l1_gb", COMPUTED)
    sizes = [size_of(size) for size in found]
    return (
        f"{listed([*map(count, found.values())])} with {listed(sizes)} of {name}" if found else ""
    )


def _against(cells: Cells) -> Iterator[str]:
    """vLLM's own tier against LMCache's of the same size."""
    names = "LMCache, mean TTFT", "vLLM's own, mean TTFT"
    other = dict(cells.where(target=OFFLOAD).by("l1_gb"))
    both = [
        (size_of(size), contrast(other[size], part, names, MEAN))
        for size, part in cells.where(target=NATIVE).by("l1_gb")
        if size in other
    ]
    if both:
        yield Contrasts("each", tuple(both)).said("With vLLM's own tier instead of LMCache's")


def enough(cells: Cells) -> StudyAnswer:
    """The smallest tier of each kind that computes no more than the engine with room for all."""
    question = "How much of it is enough?"
    small, large = small_and_large(cells)
    if not small or not large:
        return StudyAnswer(question, NOT_MEASURED)
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
    stored = sizes[-1][1].median(STORED) if sizes else None
    each = _bytes_per_token(cells)
    least = small_and_large(cells)[1].by_repeat(COMPUTED)
    if stored is not None and each is not None and _as_few(sizes[-1][1], least):
        yield (
            f"A token of KV takes {count(each)} bytes here; {memory(stored)} were stored in a run"
            " where everything found room."
        )


def _bytes_per_token(cells: Cells) -> int | None:
    return run_bytes_per_token(cells.all[0].run) if len(cells) else None


def hit(cells: Cells) -> StudyAnswer:
    """What a prompt costs that comes from a tier, by runs in which most tokens do."""
    question = "What does a hit from a tier cost, against computing?"
    small, large = small_and_large(cells)
    if not small or not large:
        return StudyAnswer(question, NOT_MEASURED)
    rows = [Arm("computing it again", small), Arm("the engine's cache", large)]
    for target in KINDS:
        parts = cells.where(target=target).by("l1_gb")
        rows += [Arm(KINDS[target], part) for _, part in parts[-1:] if _mostly_hits(part)]
    known = [(arm, arm.cells.median(P50)) for arm in rows]
    told = [(arm, middle) for arm, middle in known if middle is not None]
    said = listed([f"{duration(middle)} from {arm.name}" for arm, middle in told if arm != rows[0]])
    computing = known[0][1]
    first = (
        f"The first token comes after {duration(computing)} where the context is computed, and"
        f" after {said}: medians, of a tier over runs in which most prompt tokens came from it."
        if computing is not None and said
        else NOT_MEASURED[0]
    )
    return StudyAnswer(
        question,
        (first, NO_FINDING, *_ledger(cells)),
        (MarkdownTable(("from", "TTFT p50"), tuple((a.name, duration(m)) for a, m in told)),),
    )


def _mostly_hits(part: Cells) -> bool:
    computed, taken = part.median(COMPUTED), part.median(EXTERNAL)
    others = (computed or 0) + (part.median(CACHED) or 0)
    return computed is not None and taken is not None and taken > others


def _ledger(cells: Cells) -> Iterator[str]:
    """Bytes by vLLM's own counters against tokens by another of its counters."""
    for target in (NATIVE, TIERED):
        for size, part in cells.where(target=target).by("l1_gb"):
            known = [part.median(name) for name in (STORED, LOADED, COMPUTED, EXTERNAL)]
            each = _bytes_per_token(part)
            told = [value for value in known if value is not None]
            if each is None or len(told) < len(known) or not told[-1]:
                continue
            stored, loaded, computed, taken = told
            closes = "closes" if abs(loaded / (taken * each) - 1) < SAME - 1 else "does not close"
            yield (
                f"{size_of(size)} of {KINDS[target]}: {memory(stored)} were stored,"
                f" {percent(stored / (computed * each))} of what was computed, and {memory(loaded)}"
                f" loaded, {count(loaded / taken)} bytes for each of {count(taken)} tokens. At"
                f" {count(each)} bytes a token the ledger of loads {closes}."
            )


def predicted(cells: Cells) -> StudyAnswer:
    """vLLM's own tier replayed behind the engine's cache, with files at the end of the curve.
    LMCache's is replayed with each moment at which its loop may begin."""
    found = list(_predictions(cells.counted))
    return StudyAnswer(
        "Can its hits be predicted from the order of requests alone?",
        (*how_far_off(found), READ_AT),
        (hit_table("behind it", found),),
    )


READ_AT = (
    "The prediction for vLLM's own is `kvswarm curve RUN --tier-tokens N`. LMCache frees memory in"
    " a loop, once a second, so that the order of requests does not settle its hits. Its share is"
    " worked out afterwards, from the times in the same run and LMCache's rules: the mean over"
    " moments at which the loop may have begun, with their range. Nothing was fitted."
)


def how_far_off(found: Sequence[HitPrediction]) -> Iterator[str]:
    """The worst of each kind of tier, and whether that is within what it may be."""
    for name in KINDS.values():
        own = [each for each in found if each.kind == name]
        settled = [each for each in own if each.span is None or each.span[0] == each.span[1]]
        if settled:
            off, too_far = most_off(settled)
            yield (
                f"For {name} the predicted share of tokens that need no computing is at most"
                f" {off:.1f} points off in {_runs(settled)}{too_far}."
            )
        if open_ones := [each for each in own if each not in settled]:
            yield _left_open(name, open_ones)


def _left_open(name: str, found: Sequence[HitPrediction]) -> str:
    spans = [(each.measured, *each.span) for each in found if each.span is not None]
    widest = 100 * max(high - low for _, low, high in spans)
    within = sum(low <= measured <= high for measured, low, high in spans)
    return (
        f"For {name} the order does not tell it in {_runs(found)}: the moment of LMCache's loop is"
        f" worth up to {widest:.1f} points. The measured share is in that range in {within} of"
        f" {len(spans)}, and at most {most_off(found)[0]:.1f} points from its mean."
    )


def _runs(found: Sequence[HitPrediction]) -> str:
    return "1 run" if len(found) == 1 else f"{len(found)} runs"


def _predictions(cells: Cells) -> Iterator[HitPrediction]:
    for target, kind in KINDS.items():
        for cell in cells.where(target=target):
            known = [cell.figure(name) for name in (CACHED, EXTERNAL, COMPUTED)]
            told = [value for value in known if value is not None]
            each = run_bytes_per_token(cell.run)
            if len(told) < len(known) or each is None:
                continue
            cached, taken, computed = told
            size_gb = cell.settings["l1_gb"]
            shares = _shares(cell.run, target, int(BYTES_PER_GB * float(size_gb)), each)
            span = (min(shares), max(shares)) if target in LMCACHE else None
            measured = (cached + taken) / (cached + taken + computed)
            by = f"{size_of(size_gb)} of {kind}"
            yield HitPrediction(by, cell.repeat, statistics.mean(shares), measured, kind, span)


def _shares(run: Path, target: str, memory_bytes: int, token_bytes: int) -> list[float]:
    """Of prompt tokens that a cache of this run, with such a tier behind it, need not compute;
    several where that is not settled."""
    trace, recorded = trace_of_run(run), recorded_run(run)
    own = recorded.target["usable_tokens"]
    if target == NATIVE:
        return [predict(trace, [own], tier_tokens=memory_bytes // token_bytes).points[0].hit_rate]
    if target not in LMCACHE:
        return [predict(trace).bound]
    chunk_tokens = int(argument(recorded.target["argv"]["lmcache"], "--chunk-size") or 0)
    tier = LmcacheTier(memory_bytes, chunk_tokens * token_bytes, chunk_tokens, target in BACKED)
    sent = sent_requests(recorded)
    times = [ServedAt(each.sent_s, each.first_token_s, each.end_s) for each in sent]
    return LmcacheReplay(trace, times, own // trace.block_size, tier).shares()


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
            names = "without a tier, mean TTFT", "with it, mean TTFT"
            found = [(arm.name, contrast(alone, arm.cells, names, metric)) for arm in arms(own)]
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
NO_FINDING = (
    "Each engine was started once for all its repeats. Engines that were started alike differ in"
    " speed by some percent, of which no interval here knows: a difference of less than a tenth in"
    " time is no finding."
)


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
