"""Which router keeps the caches of several engines warm, and when it should not."""

from collections.abc import Iterator

from dashboards.report.wording import listed
from dashboards.studies.answer import StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import COMPUTED, FIRST, PLAIN, Cells, StudyCell
from dashboards.studies.contrast import Contrasts, contrast
from dashboards.studies.pictures import Bar, bars
from dashboards.studies.study import StudyQuestion
from dashboards.studies.task1.caches import HitPrediction, hit_table, most_off
from dashboards.studies.wording import count, percent, times
from loadgen.locality.curve import predict
from loadgen.locality.trace_sources import engines_of, recorded_run, trace_of_run

FLEET, IN_CONTEXT, SHARED = "vllm-fleet", "vllm-context-fleet", "vllm-lmcache-fleet"
IN_TURN, USUAL = "round_robin", "cache_aware"
AFFINITY, RATE = "context_affinity", "requests_per_s"
KINDS = {
    FLEET: "vLLM as it is",
    IN_CONTEXT: "the context scheduler in each engine",
    SHARED: "one LMCache behind both",
}
COLUMNS = (COMPUTED, "hit_rate", AFFINITY, "ttft_p50_ms", FIRST, "ttft_p95_ms", RATE)
MEAN = "ttft_ms.mean"


def routers(cells: Cells) -> list[tuple[str, Cells]]:
    """Each policy with its cells; those of a single engine have none."""
    return [(name, part) for name, part in cells.by("router") if name and len(part)]


def policy(cells: Cells) -> StudyAnswer:
    """Eight contexts on engines that hold three each."""
    alone = cells.where(target=PLAIN)
    rows = [Bar(name, _values(part), name == IN_TURN) for name, part in routers(cells)]
    rows += [Bar("one engine with all", _values(alone), True)] if len(alone) else []
    picture = StudyPicture(
        "policy",
        bars((("Computed", "prompt tokens in a run"), ("Time to first token", "mean, ms")), rows),
        "computed prompt tokens and time to first token by router",
    )
    return StudyAnswer(
        "Which router keeps the caches warm?",
        (*_computed(cells), *_one_engine(cells, alone), _faster(cells)),
        (cell_table(cells, ("router", "target", "kv_tokens"), COLUMNS),),
        (picture,),
    )


def _values(part: Cells) -> tuple[list[float], list[float]]:
    return part.figures(COMPUTED), part.figures(FIRST)


def _computed(cells: Cells) -> Iterator[str]:
    """By the engines' own counts, the least first."""
    known = [(part.median(COMPUTED), name) for name, part in routers(cells)]
    found = sorted((tokens, name) for tokens, name in known if tokens is not None)
    if not found:
        yield "Not measured."
        return
    told = [f"{count(tokens)} with {name}" for tokens, name in found]
    least, most = found[0][0], found[-1][0]
    yield (
        f"{found[0][1]} computes least and {found[-1][1]} most, {times(most / max(least, 1))} as"
        f" many prompt tokens: {listed(told)}."
    )


def _one_engine(cells: Cells, alone: Cells) -> Iterator[str]:
    """What the same memory in one piece computes."""
    tokens = alone.median(COMPUTED)
    if tokens is not None:
        size = count(float(alone.values("kv_tokens")[0]))
        yield f"One engine with the {size} tokens of both computes {count(tokens)}."


def _faster(cells: Cells) -> str:
    """Every router against turns, in time."""
    base = cells.where(router=IN_TURN)
    names = "in turn, mean TTFT", "routed, mean TTFT"
    found = [
        (name, contrast(base, part, names, MEAN))
        for name, part in routers(cells)
        if name != IN_TURN
    ]
    return Contrasts("", tuple(found)).said("Against engines that take turns")


def hot(cells: Cells) -> StudyAnswer:
    """One context has nearly all requests."""
    sentences = []
    rates = [(part.median(RATE), name) for name, part in routers(cells)]
    found = sorted(((rate, name) for rate, name in rates if rate is not None), reverse=True)
    if found:
        told = [f"{rate:.1f} with {name}" for rate, name in found]
        sentences.append(
            f"Where nearly all requests are of one context, most requests a second are answered"
            f" with {found[0][1]}: {listed(told)}."
        )
    shares = [(part.median(AFFINITY), name) for name, part in routers(cells)]
    kept = [f"{percent(share)} with {name}" for share, name in shares if share is not None]
    if kept:
        sentences.append(f"To the usual engine of their context went {listed(kept)}.")
    return StudyAnswer(
        "And where one context has nearly all requests?",
        (*sentences, _faster(cells)),
        (cell_table(cells, ("router",), COLUMNS),),
    )


def fits(cells: Cells) -> StudyAnswer:
    """Every engine holds every context: routing can only save the first use on each."""
    return StudyAnswer(
        "And where each engine has room for everything?",
        (*_computed(cells), _faster(cells)),
        (cell_table(cells, ("router",), COLUMNS),),
    )


def shared(cells: Cells) -> StudyAnswer:
    """What order or a tier in common leaves for a router to do."""
    sentences = []
    for target, said in KINDS.items():
        part = cells.where(target=target)
        turns, usual = (part.where(router=name).median(COMPUTED) for name in (IN_TURN, USUAL))
        if turns is not None and usual is not None:
            sentences.append(
                f"With {said}, {count(turns)} prompt tokens are computed in turn and"
                f" {count(usual)} with {USUAL}."
            )
    for target in (IN_CONTEXT, SHARED):
        names = "vLLM as it is, mean TTFT", "with it, mean TTFT"
        found = tuple(
            (name, contrast(cells.where(target=FLEET, router=name), part, names, MEAN))
            for name, part in routers(cells.where(target=target))
        )
        if found:
            sentences.append(Contrasts("", found).said(f"With {KINDS[target]}"))
    return StudyAnswer(
        "What do context order or a shared tier leave for a router to do?",
        tuple(sentences) or ("Not measured.",),
        (cell_table(cells, ("target", "router"), COLUMNS),),
    )


def three(cells: Cells) -> StudyAnswer:
    """One engine more, of the same size."""
    found = [
        (name, {each: kept.median(COMPUTED) for each, kept in part.by("replicas")})
        for name, part in routers(cells)
    ]
    told = [
        f"{listed([f'{count(tokens)} with {each} engines' for each, tokens in sizes.items()])}"
        f" ({name})"
        for name, known in found
        if len(sizes := {each: t for each, t in known.items() if t is not None}) > 1
    ]
    return StudyAnswer(
        "What does another engine change?",
        (f"Prompt tokens computed: {'; '.join(told)}." if told else "Not measured.",),
        (cell_table(cells, ("router", "replicas"), COLUMNS),),
    )


def predicted(cells: Cells) -> StudyAnswer:
    """The curve of what was routed to each engine, at the size of its cache."""
    found = [each for cell in cells.counted for each in _predictions(cell)]
    first = "Not measured."
    if found:
        off, too_far = most_off(found)
        first = (
            f"From the order of requests at each engine the share of tokens from its cache is told"
            f" to {off:.1f} points in {len(found)} runs{too_far}."
        )
    return StudyAnswer(
        "Can the hits be predicted from where requests went?",
        (first, "It is `kvswarm curve RUN --engine NAME` for each engine; nothing was fitted."),
        (hit_table("router", found),),
    )


def _predictions(cell: StudyCell) -> Iterator[HitPrediction]:
    run = recorded_run(cell.run)
    tokens, measured = run.target.get("usable_tokens"), cell.figure("hit_rate")
    if tokens is None or measured is None or len(engines := engines_of(run)) < 2:
        return
    curves = [predict(trace_of_run(cell.run, engine=name)) for name in engines]
    points = [(curve.at(int(tokens)), curve.prompt_tokens) for curve in curves]
    hits = sum(point.hit_rate * prompts for point, prompts in points)
    share = hits / sum(prompts for _, prompts in points)
    yield HitPrediction(cell.settings["router"], cell.repeat, share, measured)


QUESTIONS = (
    StudyQuestion("policy", ("policy",), policy),
    StudyQuestion("hot", ("hot",), hot),
    StudyQuestion("fits", ("fits",), fits),
    StudyQuestion("shared", ("shared",), shared),
    StudyQuestion("three", ("three", "policy"), three),
    StudyQuestion("predicted", ("policy", "three"), predicted),
)
