"""Which router keeps the caches of several engines warm, and when it should not."""

from collections.abc import Callable, Iterator, Sequence

from dashboards.report.wording import listed
from dashboards.studies.answer import NOT_MEASURED, StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import COMPUTED, FIRST, PLAIN, REQUESTS_PER_S, SAME, Cells, StudyCell
from dashboards.studies.contrast import Contrasts, contrast
from dashboards.studies.pictures import COST_PANELS, Bar, against, bars, line_of
from dashboards.studies.study import StudyQuestion
from dashboards.studies.task1.caches import HitPrediction, hit_table, most_off
from dashboards.studies.wording import count, crowd, percent, times
from loadgen.locality.curve import predict
from loadgen.locality.trace_sources import busy_engines, recorded_run, trace_of_run

FLEET, IN_CONTEXT, SHARED = "vllm-fleet", "vllm-context-fleet", "vllm-lmcache-fleet"
IN_TURN, USUAL = "round_robin", "cache_aware"
AFFINITY, RATE = "context_affinity", REQUESTS_PER_S
KINDS = {
    FLEET: "vLLM as it is",
    IN_CONTEXT: "the context scheduler in each engine",
    SHARED: "one LMCache behind both",
}
COLUMNS = (COMPUTED, "hit_rate", AFFINITY, "ttft_p50_ms", FIRST, "ttft_p95_ms", RATE)


def routers(cells: Cells) -> list[tuple[str, Cells]]:
    """Each policy with its cells; those of a single engine have none."""
    return [(name, part) for name, part in cells.by("router") if name and len(part)]


def policy(cells: Cells) -> StudyAnswer:
    """Eight contexts on engines that hold three each."""
    alone = cells.where(target=PLAIN)
    rows = [Bar(name, part, name == IN_TURN) for name, part in routers(cells)]
    rows += [Bar("one engine with all", alone, True)] if len(alone) else []
    picture = StudyPicture(
        "policy",
        bars(COST_PANELS, rows),
        "computed prompt tokens and time to first token by router",
    )
    return StudyAnswer(
        "Which router keeps the caches warm?",
        (*_computed(cells), *_one_engine(cells, alone), _faster(cells)),
        (cell_table(cells, ("router", "target", "kv_tokens"), COLUMNS),),
        (picture,),
    )


def _computed(cells: Cells) -> Iterator[str]:
    """By the engines' own counts, the least first, with all that compute as few or as many."""
    known = [(part.middle(COMPUTED), name) for name, part in routers(cells)]
    found = sorted((tokens, name) for tokens, name in known if tokens is not None)
    if not found:
        yield NOT_MEASURED
        return
    told = [f"{count(tokens)} with {name}" for tokens, name in found]
    least, most = found[0][0], found[-1][0]
    if most <= SAME * least:
        yield f"Prompt tokens computed: {listed(told)}."
        return
    few = [name for tokens, name in found if tokens <= SAME * least]
    many = [name for tokens, name in found if most <= SAME * tokens and name not in few]
    yield (
        f"{listed(few)} {'computes' if len(few) == 1 else 'compute'} least and {listed(many)} most,"
        f" {times(most / max(least, 1))} as many prompt tokens: {listed(told)}."
    )


def _one_engine(cells: Cells, alone: Cells) -> Iterator[str]:
    """What the same memory in one piece computes."""
    tokens = alone.middle(COMPUTED)
    if tokens is not None:
        size = count(float(alone.values("kv_tokens")[0]))
        yield f"One engine with the {size} tokens of both computes {count(tokens)}."


def _faster(cells: Cells, when: str = "Against engines that take turns") -> str:
    """Every router against turns, in time."""
    base = cells.where(router=IN_TURN)
    names = "in turn, mean TTFT", "routed, mean TTFT"
    found = [
        (name, contrast(base, part, names)) for name, part in routers(cells) if name != IN_TURN
    ]
    return Contrasts("", tuple(found)).said(when)


def hot(cells: Cells) -> StudyAnswer:
    """One context has nearly all requests."""
    return StudyAnswer(
        "And where one context has nearly all requests?",
        (*_served(cells, "nearly all requests are of one context"), _faster(cells)),
        (cell_table(cells, ("router",), COLUMNS),),
    )


def seats(cells: Cells) -> StudyAnswer:
    """One context has nearly all requests, of which an engine serves but a few at a time."""
    return StudyAnswer(
        "And where the engine of that one context is full?",
        (
            *_served(cells, "answers are long too and engines serve two requests at a time"),
            _faster(cells),
        ),
        (cell_table(cells, ("router",), COLUMNS),),
    )


def _served(cells: Cells, where: str) -> Iterator[str]:
    """Requests a second of each router, the most first, whether that is more than with the next,
    and where they went."""
    rates = [(part.middle(RATE), name) for name, part in routers(cells)]
    found = sorted(((rate, name) for rate, name in rates if rate is not None), reverse=True)
    if found:
        told = listed([f"{rate:.1f} with {name}" for rate, name in found])
        best, *others = [name for _, name in found]
        yield f"Where {where}, requests a second are {told}{_most(cells, best, others)}."
    yield from _true(cells)


def _most(cells: Cells, best: str, others: Sequence[str]) -> str:
    if not others:
        return ""
    sides = [cells.where(router=name) for name in (others[0], best)]
    found = contrast(sides[0], sides[1], (others[0], best), RATE)
    if found.verdict == "better":
        return f"; most are answered with {best}"
    why = "there is no evidence" if found.verdict == "no evidence" else f"{found.verdict} to say"
    return f"; {why} that {best} answers more than {others[0]}"


def _true(cells: Cells) -> Iterator[str]:
    """How many requests each router sent where the others of their context went."""
    shares = [(part.middle(AFFINITY), name) for name, part in routers(cells)]
    kept = [f"{percent(share)} with {name}" for share, name in shares if share is not None]
    if kept:
        yield f"To the usual engine of their context went {listed(kept)}."


def system(cells: Cells) -> StudyAnswer:
    """All contexts have a beginning in common, by which a router may not tell them apart."""
    return StudyAnswer(
        "And where all prompts begin with the same system prompt?",
        (*_computed(cells), *_true(cells), _faster(cells)),
        (cell_table(cells, ("router",), COLUMNS),),
    )


def by_load(cells: Cells) -> StudyAnswer:
    """The same contexts, asked about by more users at once."""
    kept = {IN_TURN, *cells.of("load").values("router")}
    told = [(name, part) for name, part in routers(cells) if name in kept]
    lines = [[line_of(name, part, "users", each) for name, part in told] for each in (FIRST, RATE)]
    titles = ("Time to first token", "mean, ms"), ("Throughput", "requests/s")
    panels = [(*title, each) for title, each in zip(titles, lines, strict=True)]
    picture = StudyPicture(
        "load",
        against(panels, "users"),
        "time to first token and requests a second by router against the users",
    )
    sentences = tuple(
        _faster(part, f"Of {crowd(users)}, against engines that take turns")
        for users, part in Cells(tuple(cell for _, part in told for cell in part)).by("users")
    )
    return StudyAnswer(
        "How much does it depend on the load?",
        (*_load_or_router(told), _by(told, "users", crowd), *sentences),
        (cell_table(cells.of("load"), ("router", "users"), COLUMNS),),
        (picture,),
    )


def _load_or_router(told: Sequence[tuple[str, Cells]]) -> Iterator[str]:
    """Whether what is computed hangs more on the users or on the router."""
    by_router = [part.middles("users", COMPUTED) for _, part in told] or [{}]
    loads = [users for users in by_router[0] if all(users in each for each in by_router)]
    if len(loads) < 2 or len(by_router) < 2:
        return
    of_load = max(_ratio([each[users] for users in loads]) for each in by_router)
    of_router = min(_ratio([each[users] for each in by_router]) for users in loads)
    yield (
        f"{'Less' if of_load < of_router else 'No less'} than on the router: from {crowd(loads[0])}"
        f" to {crowd(loads[-1])}, what one router has computed varies by {times(of_load)} at most,"
        f" between routers it varies by {times(of_router)} at least."
    )


def _ratio(values: Sequence[float]) -> float:
    return max(values) / max(min(values), 1)


def fits(cells: Cells) -> StudyAnswer:
    """Every engine holds every context: routing can only save the first use on each."""
    return StudyAnswer(
        "And where each engine has room for everything?",
        (*_computed(cells), _faster(cells)),
        (cell_table(cells, ("router",), COLUMNS),),
    )


def shared(cells: Cells) -> StudyAnswer:
    """What order or a tier in common leaves for a router to do."""
    sentences, left = [], []
    for target, said in KINDS.items():
        part = cells.where(target=target)
        turns, usual = (part.where(router=name).middle(COMPUTED) for name in (IN_TURN, USUAL))
        if turns is not None and usual is not None:
            left.append(f"{_fewer(turns, usual)} with {said}")
            sentences.append(
                f"With {said}, {count(turns)} prompt tokens are computed in turn and"
                f" {count(usual)} with {USUAL}."
            )
    if left:
        sentences.insert(0, f"Against turns, {USUAL} computes {listed(left)}.")
    for target in (IN_CONTEXT, SHARED):
        names = "vLLM as it is, mean TTFT", "with it, mean TTFT"
        found = tuple(
            (name, contrast(cells.where(target=FLEET, router=name), part, names))
            for name, part in routers(cells.where(target=target))
        )
        if found:
            sentences.append(Contrasts("", found).said(f"With {KINDS[target]}"))
    return StudyAnswer(
        "What do context order or a shared tier leave for a router to do?",
        tuple(sentences) or (NOT_MEASURED,),
        (cell_table(cells, ("target", "router"), COLUMNS),),
    )


def _fewer(before: float, after: float) -> str:
    """`42 % fewer prompt tokens`."""
    if before == after:
        return "as many prompt tokens"
    less = after < before
    return f"{percent(abs(after / max(before, 1) - 1))} {'fewer' if less else 'more'} prompt tokens"


def three(cells: Cells) -> StudyAnswer:
    """One engine more, of the same size."""
    changes = []
    for name, part in routers(cells):
        sizes = list(part.middles("replicas", COMPUTED).items())
        if len(sizes) > 1:
            (few, before), (many, after) = sizes[0], sizes[-1]
            changes.append(
                f"{name} computes {_fewer(before, after)} with {many} engines instead of {few}"
            )
    first = (f"{listed(changes)}.",) if changes else ()
    return StudyAnswer(
        "What does another engine change?",
        (*first, _by(routers(cells), "replicas", lambda each: f"{each} engines")),
        (cell_table(cells, ("router", "replicas"), COLUMNS),),
    )


def _by(told: Sequence[tuple[str, Cells]], axis: str, named: Callable[[str], str]) -> str:
    """What each router computes by a setting that has several values."""
    found = []
    for name, part in told:
        known = [(each, kept.middle(COMPUTED)) for each, kept in part.by(axis)]
        sizes = [
            f"{count(tokens)} with {named(each)}" for each, tokens in known if tokens is not None
        ]
        found += [f"{listed(sizes)} ({name})"] if len(sizes) > 1 else []
    return f"Prompt tokens computed: {'; '.join(found)}." if found else NOT_MEASURED


def predicted(cells: Cells) -> StudyAnswer:
    """The curve of what was routed to each engine, at the size of its cache."""
    found = [each for cell in cells.counted for each in _predictions(cell)]
    first = NOT_MEASURED
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
    if tokens is None or measured is None or not any(engines := busy_engines(run)):
        return
    curves = [predict(trace_of_run(cell.run, engine=name)) for name in engines]
    points = [(curve.at(int(tokens)), curve.prompt_tokens) for curve in curves]
    hits = sum(point.hit_rate * prompts for point, prompts in points)
    share = hits / sum(prompts for _, prompts in points)
    yield HitPrediction(cell.settings["router"], cell.repeat, share, measured)


QUESTIONS = (
    StudyQuestion("policy", ("policy",), policy),
    StudyQuestion("load", ("policy", "load"), by_load),
    StudyQuestion("hot", ("hot",), hot),
    StudyQuestion("seats", ("seats",), seats),
    StudyQuestion("system", ("system",), system),
    StudyQuestion("fits", ("fits",), fits),
    StudyQuestion("shared", ("shared",), shared),
    StudyQuestion("three", ("three", "policy"), three),
    StudyQuestion("predicted", ("policy", "system", "three"), predicted),
)
