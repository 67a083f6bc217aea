"""Random cases for orders of admission: families of traffic on engines of random shape, by seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ask import Ask
from engine_shape import WINDOW_TOKENS, EngineShape
from virtual_load import tokens

LABELS = ("right", "none", "wrong", "own", "one", "session")
LOADS = (None, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5)
"""Arrivals as a share of what stock completes when all wait at once; None is one burst."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request before it has a time: its context, its session, its token ids."""

    context: str
    session: str
    token_ids: tuple[int, ...]
    output_tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class StudyCase:
    """One engine and the requests asked of it; `load` None is one burst at 0.

    `pauses` are drawn gaps between arrivals of mean 1, to be scaled to the engine's capacity.
    """

    family: str
    seed: int
    shape: EngineShape
    prompts: tuple[Prompt, ...]
    labels: str
    load: float | None
    pauses: tuple[float, ...]

    @property
    def name(self) -> str:
        """Family and seed, which make it again."""
        return f"{self.family}-{self.seed}"

    def distinct_blocks(self) -> int:
        """How many different full blocks all prompts and replies have, counted from above."""
        size = self.shape.block_size
        heads: set[tuple[int, ...]] = set()
        blocks = 0
        for prompt in self.prompts:
            ids, end = prompt.token_ids, len(prompt.token_ids) // size
            while end and ids[: end * size] not in heads:
                heads.add(ids[: end * size])
                end -= 1
                blocks += 1
            blocks += -(-(len(ids) % size + prompt.output_tokens) // size)
        return blocks

    @property
    def fits(self) -> bool:
        """Whether nothing need ever be evicted."""
        return self.distinct_blocks() <= self.shape.usable_blocks

    def asks(self, per_s: float | None) -> list[Ask]:
        """The requests, arriving `per_s` a second, all at 0 for None."""
        now, asks = 0.0, []
        for number, (prompt, pause) in enumerate(zip(self.prompts, self.pauses, strict=True)):
            now += 0.0 if per_s is None else pause / per_s
            asks.append(self._ask(number, prompt, now))
        return asks

    def _ask(self, number: int, prompt: Prompt, at_s: float) -> Ask:
        label = {
            "right": prompt.context,
            "none": prompt.context,
            "wrong": f"w{random.Random(f'{self.name}-{number}').randrange(8)}",
            "own": f"own{number}",
            "one": "one",
            "session": prompt.session,
        }[self.labels]
        return Ask(
            f"r{number:04}",  # of equal arrivals vLLM's priority queue takes the lower name
            label,
            prompt.token_ids,
            at_s,
            prompt.output_tokens,
            labelled=self.labels != "none",
            priority=prompt.priority,
        )


Draw = Callable[[random.Random, int], list[Prompt]]


def _length(dice: random.Random, low: int, high: int) -> int:
    return int(low * (high / low) ** dice.random())


def _contexts(
    dice: random.Random, seed: int, count: int, low: int, high: int
) -> list[tuple[int, ...]]:
    return [tokens(_length(dice, low, high), "context", seed, n) for n in range(count)]


def _asked(
    dice: random.Random,
    seed: int,
    pool: Sequence[tuple[int, ...]],
    weights: Sequence[float] | None,
    count: int,
) -> list[Prompt]:
    sessions = max(2, len(pool))
    picks = dice.choices(range(len(pool)), weights, k=count)
    return [
        Prompt(
            f"c{pick}",
            f"s{dice.randrange(sessions)}",
            pool[pick] + tokens(_length(dice, 8, 120), "question", seed, number),
            _length(dice, 1, 40),
        )
        for number, pick in enumerate(picks)
    ]


def _count(dice: random.Random) -> int:
    return dice.choice((24, 40, 64, 100, 150))


def uniform(dice: random.Random, seed: int) -> list[Prompt]:
    """Contexts asked alike often."""
    pool = _contexts(dice, seed, dice.randrange(3, 24), 300, 2400)
    return _asked(dice, seed, pool, None, _count(dice))


def zipf(dice: random.Random, seed: int) -> list[Prompt]:
    """Few contexts asked often, many seldom."""
    pool = _contexts(dice, seed, dice.randrange(6, 48), 300, 2400)
    weights = [1 / (n + 1) ** dice.choice((0.8, 1.0, 1.3)) for n in range(len(pool))]
    return _asked(dice, seed, pool, weights, _count(dice))


def conversations(dice: random.Random, seed: int) -> list[Prompt]:
    """Sessions whose prompts grow by their own history."""
    count, sessions = _count(dice), dice.randrange(3, 20)
    start = tokens(_length(dice, 16, 800), "system", seed)
    history = dict.fromkeys(range(sessions), start)
    prompts = []
    for number in range(count):
        n = dice.randrange(sessions)
        history[n] += tokens(_length(dice, 40, 500), "turn", seed, number)
        if len(history[n]) > 5_000:
            history[n] = start + tokens(200, "again", seed, number)
        prompts.append(Prompt(f"c{n}", f"s{n}", history[n], _length(dice, 1, 60)))
    return prompts


def tree(dice: random.Random, seed: int) -> list[Prompt]:
    """System prompts, documents below each, questions below those."""
    tops = _contexts(dice, seed, dice.randrange(2, 6), 200, 1600)
    leaves = dice.randrange(2, 8)
    pool = [
        top + tokens(_length(dice, 200, 1200), "leaf", seed, t, leaf)
        for t, top in enumerate(tops)
        for leaf in range(leaves)
    ]
    return _asked(dice, seed, pool, None, _count(dice))


def shared_system(dice: random.Random, seed: int) -> list[Prompt]:
    """One long prompt that all share, documents behind it."""
    top = tokens(_length(dice, 600, 3000), "system", seed)
    pool = [top + doc for doc in _contexts(dice, seed, dice.randrange(3, 16), 200, 1200)]
    return _asked(dice, seed, pool, None, _count(dice))


def hot_and_unique(dice: random.Random, seed: int) -> list[Prompt]:
    """One or a few hot contexts, and prompts that nobody asks again."""
    hot = _contexts(dice, seed, dice.choice((1, 1, 2, 4)), 400, 2400)
    share = dice.choice((0.5, 0.8, 0.9, 0.97))
    prompts = _asked(dice, seed, hot, None, _count(dice))
    return [
        prompt
        if dice.random() < share
        else replace(
            prompt,
            context=f"u{number}",
            token_ids=tokens(_length(dice, 100, 2400), "unique", seed, number),
        )
        for number, prompt in enumerate(prompts)
    ]


def near_cache_size(dice: random.Random, seed: int) -> list[Prompt]:
    """Contexts of which few fit at once; the shape is drawn to that."""
    pool = _contexts(dice, seed, dice.randrange(2, 6), 1500, 4000)
    return _asked(dice, seed, pool, None, dice.choice((16, 24, 40)))


def unique(dice: random.Random, seed: int) -> list[Prompt]:
    """Nothing is asked twice."""
    count = _count(dice)
    pool = _contexts(dice, seed, count, 100, 2400)
    return [
        replace(each[0], context=f"c{n}")
        for n, each in enumerate(_asked(dice, seed, [context], None, 1) for context in pool)
    ]


def priorities(dice: random.Random, seed: int) -> list[Prompt]:
    """As uniform, with two or three priorities."""
    levels = dice.choice((2, 3))
    return [replace(each, priority=dice.randrange(levels)) for each in uniform(dice, seed)]


def sessions(dice: random.Random, seed: int) -> list[Prompt]:
    """Each session asks all documents in turn."""
    documents = _contexts(dice, seed, dice.randrange(3, 10), 400, 2000)
    count = dice.randrange(3, 10)
    asked = [(s, d) for s in range(count) for d in range(len(documents))]
    dice.shuffle(asked)
    return [
        Prompt(f"c{d}", f"s{s}", documents[d] + tokens(30, "q", seed, s, d), _length(dice, 1, 30))
        for s, d in asked
    ]


def all_fits(dice: random.Random, seed: int) -> list[Prompt]:
    """As zipf, in a cache for everything."""
    return zipf(dice, seed)


FAMILIES: dict[str, Draw] = {
    each.__name__: each
    for each in (
        uniform,
        zipf,
        conversations,
        tree,
        shared_system,
        hot_and_unique,
        near_cache_size,
        unique,
        priorities,
        sessions,
        all_fits,
    )
}


def study_case(family: str, seed: int) -> StudyCase:
    """The case of that family and seed, the same at each call."""
    dice = random.Random(f"study-{family}-{seed}")
    prompts = FAMILIES[family](dice, seed)
    load = dice.choice(LOADS)
    return StudyCase(
        family=family,
        seed=seed,
        shape=_shape(dice, family, prompts),
        prompts=tuple(prompts),
        labels=dice.choice(LABELS),
        load=load,
        pauses=_pauses(dice, len(prompts)),
    )


def _pauses(dice: random.Random, count: int) -> tuple[float, ...]:
    """Poisson arrivals, or bursts of a few at once with the same mean."""
    burst = dice.choice((1, 1, 1, 4, 12))
    return tuple(
        dice.expovariate(1 / burst) if number % burst == 0 else 0.0 for number in range(count)
    )


def _shape(dice: random.Random, family: str, prompts: Sequence[Prompt]) -> EngineShape:
    size = dice.choice((16, 128))
    longest = max(-(-(len(each.token_ids) + each.output_tokens) // size) for each in prompts) + 1
    contexts = len({each.context for each in prompts})
    room = dice.choice(("few", "few", "half", "half", "half", "most", "most", "ample"))
    if family == "all_fits":
        blocks = longest + 2 * sum(
            -(-(len(each.token_ids) + each.output_tokens) // size) for each in prompts
        )
    elif family == "near_cache_size" or room == "few":
        blocks = longest + dice.randrange(1, 1 + max(2, longest // 2))
    else:
        share = {"half": 0.5, "most": 0.8, "ample": 1.5}[room]
        blocks = max(longest + 2, int(share * contexts * longest * dice.uniform(0.5, 1.0)))
    return EngineShape(
        usable_blocks=min(blocks, 40 * WINDOW_TOKENS // size),
        block_size=size,
        max_num_seqs=dice.choice((1, 2, 4, 8, 16, 64, 256)),
        max_num_batched_tokens=dice.choice((256, 512, 2048, 8192)),
        async_scheduling=dice.random() < 0.3,
        vllm_policy="priority" if family == "priorities" else "fcfs",
    )
