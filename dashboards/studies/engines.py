"""The ladder: what each idea of an engine buys, by number of users and length of prompts."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from dashboards.report.wording import listed
from dashboards.studies.answer import LATENCY, NOT_MEASURED, StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import EIGHT_BITS, NATIVE, NO_REUSE, P50, PLAIN, Cells
from dashboards.studies.pictures import Line, against, line_of
from dashboards.studies.study import StudyQuestion
from dashboards.studies.wording import count, crowd, duration, factor, percent, times

NO_CACHE, CACHE, CONTINUOUS, SERIAL = "hf-no-cache", "hf-cache", "hf-continuous", "vllm-serial"
BOUNDED = "vllm-queue"
RUNGS = {
    NO_CACHE: "transformers without a KV cache",
    CACHE: "transformers with one",
    CONTINUOUS: "transformers with continuous batching",
    SERIAL: "vLLM one at a time",
    NO_REUSE: "vLLM without a prefix cache",
    PLAIN: "vLLM",
    EIGHT_BITS: "vLLM with KV in eight bits",
    NATIVE: "vLLM with its own offload",
}
"""From the lowest upwards, by target."""
STEPS = {
    CACHE: (NO_CACHE, "A KV cache"),
    CONTINUOUS: (CACHE, "Continuous batching over paged KV"),
    NO_REUSE: (SERIAL, "vLLM's batching"),
    PLAIN: (NO_REUSE, "Its prefix cache"),
    EIGHT_BITS: (PLAIN, "KV in eight bits"),
    NATIVE: (PLAIN, "Offload to memory, where the engine's own cache holds everything,"),
}
"""What a rung adds to another."""
RATE = "output_tokens_per_s"
CPU = "server_cpu_ms_per_token"
COLUMNS = ("requests", RATE, P50, "tpot_p50_ms", "hit_rate", "peak_engine_rss_mb", CPU)
QUEUES = {PLAIN: "all wait", BOUNDED: "sixteen wait"}
GOOD, REJECTED = "goodput_share", "rejected_share"
FLAT = 1.25
"""Up to so many times the tokens a second is flat: a queue hides the gaps between requests."""
NEARLY = 0.9
"""From such a share of the most tokens a second on, more users bring little."""


def by_users(cells: Cells) -> StudyAnswer:
    """Throughput and time to first token of each rung."""

    def lines(figure: str) -> list[Line]:
        return [line_of(name, part, "users", figure) for name, part in _rungs(cells)]

    panels = [
        ("Throughput", "output tokens/s", lines(RATE)),
        ("Time to first token", "p50, ms", lines(P50)),
    ]
    picture = StudyPicture(
        "users",
        against(panels, "users"),
        "output tokens a second and time to first token of each engine against the users",
    )
    return StudyAnswer(
        "How much does each rung serve, and to how many users?",
        (_most(cells), *_saturation(cells), *_waiting(cells), *_cpu(cells)),
        (cell_table(cells, ("target", "users"), COLUMNS),),
        (picture,),
    )


def by_step(cells: Cells) -> StudyAnswer:
    """Each rung against the one that lacks its idea, with as many users."""
    sentences = tuple(
        f"{said} gives {gain}."
        for target, (below, said) in STEPS.items()
        if (gain := _ratios(cells, below, target))
    )
    told = (*sentences, APART) if sentences else (NOT_MEASURED,)
    return StudyAnswer("What does each idea buy?", told)


def by_length(cells: Cells) -> StudyAnswer:
    """What the absence of a cache costs as prompts grow."""
    without, cached = (
        cells.where(target=target).middles("context_tokens", RATE) for target in (NO_CACHE, CACHE)
    )
    both = [size for size in without if size in cached and without[size]]
    said = [
        f"{times(cached[size] / without[size])} behind contexts of {count(float(size))} tokens"
        for size in both
    ]
    lines = [line_of(name, part, "context_tokens", RATE) for name, part in _rungs(cells)]
    picture = StudyPicture(
        "length",
        against([("Throughput", "output tokens/s", lines)], "context, tokens"),
        "output tokens a second of each engine against the length of the context",
    )
    first = (
        f"Output tokens a second with a KV cache are those without it {listed(said)}."
        if said
        else NOT_MEASURED
    )
    return StudyAnswer(
        "What does the lack of a KV cache cost as the text grows?",
        (first, *_lost(cells)),
        (cell_table(cells, ("target", "context_tokens"), COLUMNS),),
        (picture,),
    )


def by_load(cells: Cells) -> StudyAnswer:
    """Requests within the objective against those that come, with and without a bounded queue."""
    goods, rejected, told = [], [], []
    for target, name in QUEUES.items():
        if rates := _good(part := cells.where(target=target)):
            goods.append(Line(name, tuple(rates.items())))
            rejected.append(line_of(name, part, "rate", REJECTED, 100))
            told.append(f"{_kept(rates)} where {name}")
    picture = StudyPicture(
        "load",
        against(
            [
                ("Within the objective", "requests/s", goods),
                ("Rejected", "% of the requests", rejected),
            ],
            "requests offered a second",
        ),
        "requests within the objective and the rejected share against the load, by queue",
    )
    return StudyAnswer(
        "Does goodput hold when load passes capacity?",
        (
            f"Requests a second within their objective: {'; '.join(told)}."
            if told
            else NOT_MEASURED,
            *_turned_away(cells),
        ),
        (cell_table(cells, ("target", "rate"), ("requests", GOOD, REJECTED, *LATENCY[1:])),),
        (picture,),
    )


def _good(part: Cells) -> dict[float, tuple[float, ...]]:
    """Requests a second within the objective, of each repeat, by those offered."""
    found = {float(rate): same.figures(GOOD) for rate, same in part.by("rate")}
    return {rate: tuple(rate * each for each in goods) for rate, goods in found.items() if goods}


def _kept(rates: Mapping[float, Sequence[float]]) -> str:
    """The most, and what the highest load leaves of it."""
    middles = {rate: median(goods) for rate, goods in rates.items()}
    best, last = max(middles, key=lambda rate: middles[rate]), max(middles)
    return f"{middles[best]:.3g} of {best:g} offered and {middles[last]:.3g} of {last:g}"


def _turned_away(cells: Cells) -> Iterator[str]:
    shares = cells.where(target=BOUNDED).middles("rate", REJECTED)
    if shares:
        told = [f"{percent(share)} of {float(rate):g}" for rate, share in shares.items()]
        yield f"Where sixteen wait, rejected at once are {listed(told)} a second (503)."


def _rungs(cells: Cells) -> Iterator[tuple[str, Cells]]:
    for target, name in RUNGS.items():
        if len(part := cells.where(target=target)):
            yield name, part


def _rates(part: Cells) -> dict[str, float]:
    """Output tokens a second by users, from the fewest on."""
    return part.middles("users", RATE)


def _most(cells: Cells) -> str:
    """The best of each rung."""
    told = []
    for name, part in _rungs(cells):
        if rates := _rates(part):
            users = max(rates, key=lambda each: rates[each])
            told.append(f"{rates[users]:.3g} from {name} ({crowd(users)})")
    return f"The most output tokens a second are {listed(told)}." if told else NOT_MEASURED


def _saturation(cells: Cells) -> Iterator[str]:
    """Which rungs are flat, and from how many users on more bring little."""
    flat, growing, falling = [], [], []
    for name, part in _rungs(cells):
        rates = _rates(part)
        if len(rates) < 2 or float(next(iter(rates))) != 1:
            continue
        values = [*rates.values()]
        most, least = max(values), min(values)
        if most <= FLAT * values[0] and least >= values[0] / FLAT:
            flat.append(name)
            continue
        users = next(each for each, rate in rates.items() if rate >= NEARLY * most)
        growing.append(f"{name} at {crowd(users)} ({times(most / values[0])} the rate of one)")
        if values[-1] < most / FLAT:
            share = percent(values[-1] / most)
            falling.append(f"{name} to {share} of its most with {crowd([*rates][-1])}")
    if flat:
        yield (
            f"More users bring nothing to {listed(flat)}: the rate stays within"
            f" {percent(FLAT - 1)} of that of one user."
        )
    if growing:
        yield f"The rate reaches nearly its most with {listed(growing)}."
    if falling:
        yield f"Beyond that it falls: {listed(falling)}."


def _waiting(cells: Cells) -> Iterator[str]:
    """The first token where the most users wait that all but the slowest rung had."""
    users = cells.where(target=PLAIN).values("users")
    if not users:
        return
    told = [
        f"{duration(middle)} from {name}"
        for name, part in _rungs(cells)
        if (middle := part.where(users=users[-1]).middle(P50)) is not None
    ]
    if told:
        yield f"With {crowd(users[-1])} the first token comes after {listed(told)} (medians)."


def _cpu(cells: Cells) -> Iterator[str]:
    """Of each rung whose processes were watched, with the fewest and the most users that it had."""
    told = []
    for name, part in _rungs(cells):
        found = [*part.middles("users", CPU).items()]
        ends = dict((*found[:1], *found[-1:]))
        if spent := [f"{ms:.3g} ms with {crowd(users)}" for users, ms in ends.items()]:
            told.append(f"{listed(spent)} from {name}")
    if told:
        yield f"CPU time of each token that is computed or written: {'; '.join(told)}."


def _ratios(cells: Cells, below: str, target: str) -> str:
    """At the fewest and the most users that both had."""
    base, new = (
        {users: part.figures(RATE) for users, part in cells.where(target=each).by("users")}
        for each in (below, target)
    )
    both = [users for users, rates in new.items() if rates and min(base.get(users) or [0]) > 0]
    if not both:
        return ""
    first, *others = (
        (_ratio(base[users], new[users]), crowd(users))
        for users in dict.fromkeys((both[0], both[-1]))
    )
    told = f"{first[0]} the output tokens a second of `{below}` with {first[1]}"
    return listed([told, *(f"{ratio} with {users}" for ratio, users in others)])


def _ratio(base: Sequence[float], new: Sequence[float]) -> str:
    """Of the medians, and of what is farthest apart."""
    middle = times(median(new) / median(base))
    low, high = factor(min(new) / max(base)), factor(max(new) / min(base))
    return middle if low == high else f"{middle} ({low} to {high})"


APART = (
    "In brackets is the slowest run over the fastest, and the reverse. Engines that were started"
    " alike differ, too, of which that knows nothing: a ratio near 1 is no finding."
)


def _lost(cells: Cells) -> Iterator[str]:
    """From the shortest to the longest context, by rung."""
    told = []
    for name, part in _rungs(cells):
        rates = [*part.middles("context_tokens", RATE).values()]
        if len(rates) > 1 and rates[0]:
            told.append(f"{percent(rates[-1] / rates[0])} with {name}")
    if told:
        yield (
            "Of the output tokens a second behind the shortest context, the longest leaves"
            f" {listed(told)}."
        )


LADDER_QUESTIONS = (
    StudyQuestion("users", ("users",), by_users),
    StudyQuestion("steps", ("users",), by_step),
    StudyQuestion("length", ("length",), by_length),
    StudyQuestion("load", ("load",), by_load),
)
