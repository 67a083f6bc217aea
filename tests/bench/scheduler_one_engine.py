"""The batch of the musts on one real engine whose scheduler is exchanged between batches.

    python tests/bench/scheduler_one_engine.py --out DIR [--quick]

Two servers started alike may differ in speed for as long as they run, by more than some musts
allow. So all arms share one engine here: its process, model, memory and cores.
Before each batch EngineCore is given a new scheduler of the arm's class with an empty cache of the
wanted size, made with the arguments with which vLLM made its own. A process of its own, as it
imports vLLM.
"""

import argparse
import copy
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

from cpu_watch import CpuWatch
from scheduler_batches import BLOCK_TOKENS, Question
from scheduler_cases import Arm, OneEngineCase, one_engine_cases
from scheduler_rows import OneEngineRow, read_rows, write_rows
from scheduler_servers import STOCK
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from loadgen.launch.target_run import demo_model
from scheduler_plugin import ContextScheduler
from scheduler_plugin.scheduler import stock_class

KV_BYTES, WINDOW_TOKENS = 2**30, 4352
MADE_WITH: dict[str, Any] = {}


def recording_scheduler(**arguments: Any) -> Any:
    """vLLM's own scheduler; what it was made with is kept for those that take its place."""
    MADE_WITH.update(arguments)
    return stock_class(arguments["vllm_config"])(**arguments)


def scheduler_of(arm: Arm, case: OneEngineCase) -> Any:
    """A new scheduler of an arm's class, its cache empty and of the case's size."""
    config = copy.copy(MADE_WITH["vllm_config"])
    if case.max_num_seqs is not None:
        config.scheduler_config = copy.copy(config.scheduler_config)
        config.scheduler_config.max_num_seqs = case.max_num_seqs
    made, settings = ContextScheduler, {"policy": arm.policy}
    if arm.policy == STOCK:
        made, settings = stock_class(config), {}
    config.additional_config = {"context_scheduler": settings} if settings else {}
    # One block more: vLLM keeps one to itself.
    cache = replace(MADE_WITH["kv_cache_config"], num_blocks=case.blocks + 1)
    return made(**{**MADE_WITH, "vllm_config": config, "kv_cache_config": cache})


class OneEngine:
    """A real engine in this process, without a server before it."""

    def __init__(self) -> None:
        arguments = EngineArgs(
            model=str(demo_model("tiny")),
            max_model_len=WINDOW_TOKENS,
            block_size=BLOCK_TOKENS,
            kv_cache_memory_bytes=KV_BYTES,
            enforce_eager=True,
            scheduler_cls=f"{__name__}.recording_scheduler",
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._core = self._engine.engine_core.engine_core
        self._served = 0

    def serve(self, case: OneEngineCase, arm: Arm, repeat: int) -> OneEngineRow:
        """One batch from the first request to the last reply."""
        self._core.scheduler = scheduler = scheduler_of(arm, case)
        scheduled = _count_tokens(scheduler)
        questions = case.batch.questions(case.order(repeat))
        watch, start = CpuWatch(), time.perf_counter()
        self._add(questions, case.batch.output_tokens, arm.labelled)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        total_s, others_cpu = time.perf_counter() - start, watch.others()
        self._core.step()  # the model runner hears who is finished
        decoded = len(questions) * (case.batch.output_tokens - 1)
        return OneEngineRow(
            case=case.title,
            blocks=case.blocks,
            arm=arm.name,
            repeat=repeat,
            requests=len(questions),
            bound_tokens=case.batch.bound_tokens,
            computed_tokens=sum(scheduled) - decoded,
            steps=sum(tokens > 0 for tokens in scheduled),
            total_s=total_s,
            others_cpu=others_cpu,
        )

    def _add(self, questions: Sequence[Question], output_tokens: int, labelled: bool) -> None:
        for question in questions:
            self._served += 1
            sampling = SamplingParams(
                max_tokens=output_tokens,
                ignore_eos=True,
                temperature=0.0,
                extra_args={"context": question.context} if labelled else None,
            )
            prompt = {"prompt_token_ids": list(question.prompt)}
            self._engine.add_request(f"request-{self._served}", prompt, sampling)


def _count_tokens(scheduler: Any) -> list[int]:
    """The tokens of each step to come."""
    tokens, schedule = [], scheduler.schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        tokens.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = counted
    return tokens


def measure(out: Path, quick: bool) -> None:
    """All cases but those on disk, where each batch is when it was measured."""
    engine, rows = OneEngine(), read_rows(OneEngineRow, out)
    made = {(row.case, row.arm, row.repeat) for row in rows}
    for case in one_engine_cases(quick):
        for repeat, arm in case.turns():
            if (case.title, arm.name, repeat) in made:
                continue
            row = engine.serve(case, arm, repeat)
            rows.append(row)
            write_rows(rows, out)
            sys.stderr.write(
                f"{row.case}, {repeat} of {case.repeats}: {row.arm} {row.total_s:.2f} s,"
                f" {row.computed_tokens} tokens in {row.steps} steps, others {row.others_cpu:.0%}\n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parsed = parser.parse_args()
    measure(parsed.out, parsed.quick)


if __name__ == "__main__":
    main()
