"""What the study of engines says, of runs made by hand."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from study_cells import Made, cell

from dashboards.studies.answer import StudyAnswer
from dashboards.studies.cell import Cells
from dashboards.studies.engines import by_length, by_load, by_step, by_users

RATES: Mapping[str, Mapping[int, float]] = {
    "hf-no-cache": {1: 10.0, 4: 11.0},
    "hf-cache": {1: 50.0, 4: 60.0, 64: 60.0},
    "hf-continuous": {1: 50.0, 4: 150.0, 64: 155.0},
    "vllm-serial": {1: 80.0, 4: 80.0, 64: 90.0},
    "vllm-no-prefix-cache": {1: 80.0, 4: 160.0, 64: 400.0},
    "vllm": {1: 90.0, 4: 200.0, 64: 800.0},
}


def said(answer: StudyAnswer) -> str:
    return " ".join(answer.sentences)


def served(folder: Path, rates: Mapping[str, Mapping[int, float]] = RATES) -> Cells:
    """The first token comes after a second for each user."""
    return Cells(
        tuple(
            cell(
                folder,
                "users",
                Made([1000.0 * users] * 10),
                figures={"output_tokens_per_s": rate, "ttft_p50_ms": 1000.0 * users},
                target=target,
                users=users,
            )
            for target, by_crowd in rates.items()
            for users, rate in by_crowd.items()
        )
    )


def test_flat_and_growing_rungs_are_told_apart(tmp_path: Path) -> None:
    answer = by_users(served(tmp_path))
    assert "11 from transformers without a KV cache (4 users at once)" in answer.short
    assert "800 from vLLM (64 users at once)" in answer.short
    text = said(answer)
    assert (
        "nothing to transformers without a KV cache, transformers with one and vLLM one at a time"
        in text
    )
    assert "continuous batching at 4 users at once (3.1 times the rate of one)" in text
    assert "vLLM at 64 users at once (8.9 times" in text
    assert "With 64 users at once the first token comes after 64.0 s from transformers with" in text


def test_a_serial_rung_that_grows_is_not_flat(tmp_path: Path) -> None:
    text = said(by_users(served(tmp_path, {"vllm-serial": {1: 80.0, 64: 160.0}})))
    assert "nothing" not in text
    assert "vLLM one at a time at 64 users at once (2.0 times" in text


def test_each_idea_is_set_against_the_rung_without_it(tmp_path: Path) -> None:
    text = said(by_step(served(tmp_path)))
    assert (
        "A KV cache gives 5.0 times the output tokens a second of `hf-no-cache` with one user and"
        " 5.5 times with 4 users at once." in text
    )
    assert "of `hf-cache` with one user and 2.6 times with 64 users at once." in text
    assert "Its prefix cache gives 1.1 times the output" in text
    assert by_step(Cells(())).short == "Not measured."


def test_what_no_cache_costs_grows_with_the_text(tmp_path: Path) -> None:
    rates = {("hf-no-cache", 50): 20.0, ("hf-no-cache", 1000): 2.0, ("hf-cache", 50): 60.0}
    cells = [
        cell(
            tmp_path,
            "length",
            Made([100.0] * 10),
            figures={"output_tokens_per_s": rate},
            target=target,
            context_tokens=size,
        )
        for (target, size), rate in {**rates, ("hf-cache", 1000): 30.0}.items()
    ]
    answer = by_length(Cells(tuple(cells)))
    assert "3.0 times behind contexts of 50 tokens and 15 times behind" in answer.short
    assert "leaves 10 % with transformers without a KV cache and 50 %" in said(answer)


def test_the_cpu_of_a_token_is_told_of_rungs_that_have_it(tmp_path: Path) -> None:
    spent = {("hf-cache", 1): 12.0, ("vllm", 1): 4.0, ("vllm", 64): 0.25, ("vllm-serial", 1): None}
    cells = [
        cell(
            tmp_path,
            "users",
            Made([100.0] * 10),
            figures={"output_tokens_per_s": 9.0, "server_cpu_ms_per_token": ms},
            target=target,
            users=users,
        )
        for (target, users), ms in spent.items()
    ]
    answer = by_users(Cells(tuple(cells)))
    assert (
        "CPU time of each token that is computed or written: 12 ms with one user from transformers"
        " with one; 4 ms with one user and 0.25 ms with 64 users at once from vLLM." in said(answer)
    )
    assert "CPU of a token" in answer.tables[0].header
    assert "CPU" not in said(by_users(served(tmp_path)))


def test_goodput_past_capacity_is_told_of_each_queue(tmp_path: Path) -> None:
    shares = {
        ("vllm", 4): (1.0, 0.0),
        ("vllm", 16): (0.25, 0.0),
        ("vllm-queue", 4): (1.0, 0.0),
        ("vllm-queue", 16): (0.5, 0.45),
    }
    cells = [
        cell(
            tmp_path,
            "load",
            Made([1000.0] * 10),
            figures={"goodput_share": good, "rejected_share": rejected},
            target=target,
            rate=rate,
        )
        for (target, rate), (good, rejected) in shares.items()
    ]
    answer = by_load(Cells(tuple(cells)))
    assert "4 of 4 offered and 4 of 16 where all wait" in answer.short
    assert "8 of 16 offered and 8 of 16 where sixteen wait" in answer.short
    assert "rejected at once are 0 % of 4 and 45 % of 16 a second" in said(answer)
    assert answer.tables[0].rows[-1][:6] == ("vllm-queue", "16", "1", "10", "50 %", "45 %")
    titles = [axes.get_title("left") for axes in answer.pictures[0].figure.axes]
    assert titles == ["Within the objective", "Rejected"]
    assert by_load(Cells(())).short == "Not measured."
