"""Random mixtures of everything, every invariant checked after every step."""

import random
from dataclasses import replace
from typing import Any

from ask import Ask
from engine_shape import EngineShape, settings
from queue_invariants import FifoInContext, all_done, nothing_lost, work_conserving
from virtual_engine import VirtualEngine
from virtual_load import tokens
from vllm.v1.core.sched.output import SchedulerOutput


def random_shape(dice: random.Random) -> EngineShape:
    lookups = dice.choice([None, None, 0, 1, 4])
    return EngineShape(
        usable_blocks=dice.choice([24, 40, 100]),
        block_size=16,
        max_num_seqs=dice.choice([1, 3, 8, 64]),
        max_num_batched_tokens=dice.choice([64, 200, 2048]),
        async_scheduling=dice.random() < 0.5,
        vllm_policy=dice.choice(["fcfs", "fcfs", "priority"]),
        max_loras=dice.choice([0, 0, 1, 2]),
        pending_lookups=lookups,
        external_tokens=dice.choice([0, 32]) if lookups else 0,
        load_in_background=dice.random() < 0.5,
        plugin=settings(
            policy=dice.choice(["prefix-group", "lpm", "reuse", "reuse", "fcfs"]),
            key=dice.choice(["auto", "label", "prefix"]),
            quantum=dice.choice([1, 2, 5, 32]),
            max_overtakes=dice.choice([0, 1, 8, 64]),
            window=dice.choice([1, 2, 8, 64]),
            min_kv_usage=dice.choice([0.0, 0.0, 0.5]),
        ),
    )


def random_ask(dice: random.Random, number: int, shape: EngineShape) -> Ask:
    context = dice.randrange(8)
    start = tokens(60, "system") + tokens(20 * context, "fuzz", context)
    end = tokens(dice.randint(1, 40), "end", number, dice.random())
    return Ask(
        f"r{number}",
        f"c{context}",
        (start if dice.random() < 0.9 else ()) + end,
        arrival_s=float(number),
        output_tokens=dice.choice([1, 4, 60]),
        labelled=dice.random() < 0.7,
        priority=dice.randrange(3) if shape.vllm_policy == "priority" else 0,
        lora=dice.randrange(4) if shape.max_loras else 0,
        grammar_s=dice.choice([None, None, None, 0.0, 0.2]),
    )


class Chaos:
    """Clients that come and go, and an operator who resets the cache, from one seed.

    `shape` holds what is not left to chance of the engine.
    """

    def __init__(self, seed: int, steps: int = 50, **shape: Any) -> None:
        self.dice = random.Random(seed)
        self.steps = steps
        self.shape = replace(random_shape(self.dice), **shape)
        plugin = dict(self.shape.plugin or ())
        calm = plugin["policy"] in ("prefix-group", "lpm") and plugin["key"] == "label"
        self._fifo = FifoInContext() if calm and self.shape.vllm_policy == "fcfs" else None
        self.engine = VirtualEngine(self.shape, on_step=self.check)
        self.sent: list[str] = []
        self.aborted: set[str] = set()

    def check(self, engine: VirtualEngine, output: SchedulerOutput) -> None:
        nothing_lost(engine)
        if not self.shape.async_scheduling and self.shape.pending_lookups is None:
            work_conserving(engine, output)
        if self._fifo is not None:
            self._fifo(engine, output)

    def act(self) -> None:
        for _ in range(self.dice.choice([0, 0, 1, 2, 6])):
            ask = random_ask(self.dice, len(self.sent), self.shape)
            # A request without label and one with it are of different contexts to the plugin.
            self.engine.submit(replace(ask, labelled=True) if self._fifo else ask)
            self.sent.append(ask.name)
        if self.sent and self.dice.random() < 0.15:
            self.abort(self.dice.sample(self.sent, min(2, len(self.sent))))
        if self.dice.random() < 0.03:
            self.engine.scheduler.reset_prefix_cache()
        # With a connector vLLM itself refuses this while blocks of a step in flight are held.
        if self.dice.random() < 0.03 and self.shape.pending_lookups is None:
            self.engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        nothing_lost(self.engine)

    def abort(self, names: list[str]) -> None:
        alive = self.engine.scheduler.requests
        self.aborted |= {name for name in names if name in alive}
        self.engine.abort(*names, "nobody")

    def run(self) -> None:
        for _ in range(self.steps):
            self.act()
            self.engine.step()
        self.engine.run()
        all_done(self.engine, set(self.sent) - self.aborted)
